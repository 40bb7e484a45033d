#include "trainer/drift/probe_series.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/status_matchers.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;

constexpr int kTokens = 16;  // two each of eight completions

std::vector<int32_t> Completions() {
  std::vector<int32_t> completion;
  for (int t = 0; t < kTokens; ++t) completion.push_back(t / 2);
  return completion;
}
std::vector<float> All(double value) {
  return std::vector<float>(kTokens, static_cast<float>(value));
}
TrainerProbe Trainer(double masters, double served, double distance, double push) {
  return {All(masters), All(served), distance, push};
}

TEST(ProbeSeries, ReportsTheTrainerNowAgainstServersAndTheSameWeightsAgainstEachOther) {
  ProbeSeries series(Completions());
  series.AddTrainer(0, Trainer(-1, -1.25, 0, 0));
  series.AddServer(0, 0, All(-1.5));
  MetricsLine line(1, 0);
  series.Report(0, &line);
  EXPECT_EQ(line.Get("drift/probe/tokens"), kTokens);
  EXPECT_EQ(line.Get("drift/probe/mean_abs_delta"), 0.5);
  EXPECT_EQ(line.Get("drift/probe/mean_abs_delta_low"), 0.5);
  EXPECT_EQ(line.Get("drift/probe/k1"), -0.5);
  EXPECT_EQ(line.Get("drift/delivery/square"), 0.0625) << "without the cast";
  EXPECT_EQ(line.Get("drift/delivery/floor"), 0.0625);
  EXPECT_TRUE(std::isnan(line.Get("drift/delivery/undelivered"))) << "one push";
}

TEST(ProbeSeries, ServersThatAreHeldBackMeetTheTrainerOfTheirVersion) {
  ProbeSeries series(Completions());
  MetricsLine line(9, 0);
  for (int64_t v = 0; v < 8; ++v) {
    const double of_version = -1 - 0.1 * static_cast<double>(v);
    series.AddTrainer(v, Trainer(of_version, of_version, static_cast<double>(v), 1));
    const int64_t served = std::max<int64_t>(0, v - 2);
    series.AddServer(served, 0, All(-1 - 0.1 * static_cast<double>(served)));
    series.ForgetBefore(v - 2);
  }
  series.Report(7, &line);
  EXPECT_EQ(line.Get("drift/probe/lag"), 2);
  EXPECT_NEAR(line.Get("drift/probe/mean_abs_delta"), 0.2, 1e-6);  // staleness
  EXPECT_EQ(line.Get("drift/delivery/pushes"), 6) << "version 0 counts once";
  EXPECT_EQ(line.Get("drift/delivery/square"), 0);
  EXPECT_EQ(line.Get("drift/delivery/undelivered"), 0);
  EXPECT_EQ(line.Get("drift/delivery/behind"), 0);
}

TEST(ProbeSeries, TheServerThatKeepsItsFirstWeightsIsTheOneReported) {
  ProbeSeries series(Completions());
  for (int64_t v = 0; v < 6; ++v) {
    const auto x = static_cast<double>(v);
    series.AddTrainer(v, Trainer(-1 - 0.1 * x, -1 - 0.1 * x, x, v == 0 ? 0 : 1));
    series.AddServer(v, 0, All(-1 - 0.1 * x));
    series.AddServer(v, 1, All(-1));
  }
  MetricsLine line(6, 0);
  series.Report(5, &line);
  EXPECT_EQ(line.Get("drift/delivery/server"), 1);
  EXPECT_NEAR(line.Get("drift/delivery/undelivered"), 0.25, 1e-5);  // (0.1 x 5)^2
  EXPECT_EQ(line.Get("drift/delivery/behind"), 5) << "nothing ever arrived";
  EXPECT_NEAR(line.Get("drift/probe/mean_abs_delta"), 0.25, 1e-6) << "mean of 0 and 0.5";
}

TEST(ProbeSeries, AServerThatComputesWithAnEarlierVersionIsFoundOut) {
  ProbeSeries series(Completions());
  for (int64_t v = 0; v < 6; ++v) {
    const auto x = static_cast<double>(v);
    series.AddTrainer(v, Trainer(-1 - x * x, -1 - x * x, x, 1));
    series.AddServer(v, 0, All(v == 5 ? -1 - 9.0 : -1 - x * x));  // 3 in place of 5
  }
  MetricsLine line(6, 0);
  series.Report(5, &line);
  EXPECT_EQ(line.Get("drift/delivery/behind"), 2);
  EXPECT_EQ(line.Get("drift/delivery/nearest_square"), 0);
  EXPECT_EQ(line.Get("drift/delivery/square"), 256);
}

TEST(ProbeSeries, VisitationIsWhatFreshTokensHaveBeyondTheProbeAtTheSameLags) {
  ProbeSeries series(Completions());
  series.AddTrainer(0, Trainer(-1, -1, 0, 0));
  series.AddServer(0, 0, All(-1));
  series.AddTrainer(1, Trainer(-1.5, -1.5, 1, 1));
  series.AddServer(1, 0, All(-1.375));
  MetricsLine line(2, 0);
  line.AddInterval("drift/mean_abs_delta", {.value = 1, .low = 0.75, .high = 1.5});
  // A quarter of the tokens is of version 0: the probe's gap is 0.5 there, and 0.125 at version 1.
  series.ReportVisitation(1, {{0, 30}, {1, 10}}, &line);
  EXPECT_DOUBLE_EQ(line.Get("drift/visitation/mean_abs_delta"), 1 - (0.75 * 0.125 + 0.25 * 0.5));
  EXPECT_NEAR(line.Get("drift/visitation/mean_abs_delta_low"), 0.78125 - 0.25, 1e-12);
  MetricsLine unknown(2, 0);
  unknown.Add("drift/mean_abs_delta", 1);
  series.ReportVisitation(1, {{0, 30}, {3, 10}}, &unknown);
  EXPECT_EQ(unknown.scalars().size(), 1u) << "three versions ago nothing was probed";
}

TEST(ProbeSeries, AResumedRunGoesOnWithItsPushes) {
  ProbeSeries whole(Completions()), first(Completions()), second(Completions());
  const auto add = [](ProbeSeries& series, int64_t v) {
    const auto x = static_cast<double>(v);
    series.AddTrainer(v, Trainer(-1, -1, x, v == 0 ? 0 : 1 / (1 + x)));
    series.AddServer(v, 0, All(-1 - 0.3 * x));
  };
  for (int64_t v = 0; v < 6; ++v) add(whole, v);
  for (int64_t v = 0; v < 4; ++v) add(first, v);
  const auto lines = first.TakePushLines(4);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_TRUE(first.TakePushLines(5).empty()) << "each once";
  for (const std::string& line : lines) ASSERT_THAT(second.RestorePush(line), IsOk());
  EXPECT_TRUE(second.TakePushLines(5).empty());
  for (int64_t v = 4; v < 6; ++v) add(second, v);
  MetricsLine expected(6, 0), actual(6, 0);
  whole.Report(5, &expected);
  second.Report(5, &actual);
  EXPECT_GT(expected.Get("drift/delivery/undelivered_low"), 0);
  for (const char* name :
       {"drift/delivery/undelivered", "drift/delivery/pushes", "drift/delivery/floor"}) {
    EXPECT_EQ(actual.Get(name), expected.Get(name)) << name;
  }
  EXPECT_THAT(second.RestorePush("{\"server\":0,\"version\":1,\"squares\":[1]}"),
              FailsWith(absl::StatusCode::kDataLoss, "not a push of this probe set"));
}

}  // namespace
}  // namespace tandem::trainer
