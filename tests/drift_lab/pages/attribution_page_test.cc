#include "drift_lab/pages/attribution_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>

namespace tandem::drift {
namespace {

using ::nlohmann::json;
using ::testing::ElementsAre;

constexpr float kNaNf = std::numeric_limits<float>::quiet_NaN();

// "<7><8>": which ids were decoded.
std::string Decode(std::span<const int32_t> ids) {
  std::string text;
  for (const int32_t id : ids) text += "<" + std::to_string(id) + ">";
  return text;
}

// A completion of `ids`, its deltas, and the part of them that the cast makes; the head's is the
// rest. Alone, each factor makes half as much again.
void Add(const std::vector<int32_t>& ids, const std::vector<float>& delta,
         const std::vector<float>& cast, bool masked, Attribution& a) {
  offpolicy::Capture& c = a.capture;
  c.group.push_back(0);
  c.completion_index.push_back(static_cast<int32_t>(c.masked.size()));
  c.masked.push_back(masked);
  c.reward.push_back(1);
  for (size_t t = 0; t < ids.size(); ++t) {
    c.token_ids.push_back(ids[t]);
    c.advantages.push_back(0.5);
    c.weight_version.push_back(3);
    a.ablation.record.push_back(-1);
    a.ablation.proximal.push_back(-1 + delta[t]);
    const double rest = static_cast<double>(delta[t]) - cast[t];
    const double values[] = {0, cast[t], rest};
    for (size_t i = 0; i < 3; ++i) a.token_parts.values[i].push_back(values[i]);
    const double cells[] = {0, 1.5 * cast[t], 1.5 * rest, delta[t]};
    for (size_t i = 0; i < 4; ++i) a.token_parts.cells[i].push_back(cells[i]);
  }
  c.token_offsets.push_back(static_cast<int64_t>(c.token_ids.size()));
}

Attribution Empty() {
  Attribution a;
  a.capture.group_id = {40};
  a.capture.prompt_ids = {1, 2};
  a.capture.prompt_offsets = {0, 2};
  a.capture.token_offsets = {0};
  a.token_parts = {.parts = {Part::kRecord, Part::kCast, Part::kHead},
                   .values = {{}, {}, {}},
                   .first_factor = 1,
                   .num_factors = 2,
                   .cells = {{}, {}, {}, {}}};
  return a;
}

// Deltas 0.25, -0.5, 1; then 0.75 alone; then a masked one.
Attribution Three() {
  Attribution a = Empty();
  Add({7, 8, 7}, {0.25, -0.5, 1}, {0.25, -0.25, 0}, false, a);
  Add({9}, {0.75}, {0.5}, false, a);
  Add({8, 8}, {4, kNaNf}, {0, 0}, true, a);
  return a;
}

json Data(const Attribution& a, const PageLimits& limits = {}) {
  return json::parse(AttributionPageData(a, Decode, limits));
}

TEST(AttributionPageTest, CurvesAreMeansOfTheTrainedTokensAtEachPosition) {
  const json p = Data(Three())["positions"];
  EXPECT_THAT(p["tokens"], ElementsAre(2, 1, 1));
  EXPECT_THAT(p["from"], ElementsAre(0, 1, 2));
  EXPECT_EQ(p["mean"][0][0], 0.5);  // of 0.25 and 0.75
  EXPECT_EQ(p["mean_abs"][1][0], 0.5);
  EXPECT_EQ(p["mean"][1][0], -0.5);
  EXPECT_EQ(p["mean"][0][1], nullptr) << "two completions make no interval";
  EXPECT_THAT(p["parts"]["cast"]["mean"], ElementsAre(0.375, -0.25, 0));
  EXPECT_THAT(p["parts"]["cast"]["mean_abs"], ElementsAre(1.5 * 0.375, 1.5 * 0.25, 0));  // alone
  EXPECT_THAT(p["parts"]["head"]["mean"], ElementsAre(0.125, -0.25, 1));
}

TEST(AttributionPageTest, LongCompletionsShareBins) {
  const json p = Data(Three(), {.max_bins = 2})["positions"];
  EXPECT_THAT(p["from"], ElementsAre(0, 2));
  EXPECT_THAT(p["to"], ElementsAre(1, 3));
  EXPECT_THAT(p["tokens"], ElementsAre(3, 1));
  EXPECT_EQ(p["mean_abs"][0][0], 0.5);  // of 0.25, 0.5 and 0.75
}

TEST(AttributionPageTest, EightCompletionsMakeAnInterval) {
  Attribution a = Empty();
  for (int i = 1; i <= 8; ++i) Add({7}, {0.125f * static_cast<float>(i)}, {0}, false, a);
  const json mean = Data(a)["positions"]["mean"][0];
  EXPECT_EQ(mean[0], 0.5625);
  EXPECT_LT(mean[1], 0.5625);
  EXPECT_GT(mean[1], 0.125);
  EXPECT_GT(mean[2], 0.5625);
  EXPECT_LT(mean[2], 1);
}

TEST(AttributionPageTest, TheMapHasEveryCompletionAndTheTextOfEachIdOnce) {
  const json map = Data(Three())["map"];
  EXPECT_EQ(map["every"], 1);
  EXPECT_EQ(map["columns"], 3);
  EXPECT_EQ(map["cut_tokens"], 0);
  EXPECT_THAT(map["parts"], ElementsAre("cast", "head")) << "the record is 0 everywhere";
  EXPECT_THAT(map["texts"], ElementsAre("<7>", "<8>", "<9>"));
  ASSERT_EQ(map["rows"].size(), 3u);
  EXPECT_THAT(map["rows"][0]["tokens"], ElementsAre(0, 1, 0));
  EXPECT_THAT(map["rows"][0]["delta"], ElementsAre(0.25, -0.5, 1));
  EXPECT_THAT(map["rows"][0]["parts"]["head"], ElementsAre(0, -0.25, 1));
  EXPECT_EQ(map["rows"][0]["group"], 40);
  EXPECT_EQ(map["rows"][2]["masked"], true);
  EXPECT_THAT(map["rows"][2]["delta"], ElementsAre(4, nullptr)) << "not scored is not 0";
}

TEST(AttributionPageTest, ALargeBatchIsThinnedAndLongCompletionsAreCutAndBothAreCounted) {
  const json map = Data(Three(), {.max_cells = 3, .max_columns = 2})["map"];
  EXPECT_EQ(map["every"], 2);  // 2 + 1 + 2 cells for 3
  EXPECT_EQ(map["cut_tokens"], 1);
  EXPECT_EQ(map["columns"], 2);
  ASSERT_EQ(map["rows"].size(), 2u);
  EXPECT_EQ(map["rows"][1]["completion"], 2);
  EXPECT_EQ(map["rows"][0]["delta"].size(), 2u);
}

TEST(AttributionPageTest, TheWorstTokensFallInSizeAndStandInTheirContext) {
  const json worst = Data(Three(), {.num_worst = 3})["worst"];
  ASSERT_EQ(worst.size(), 3u);
  EXPECT_EQ(worst[0]["delta"], 1) << "4 is larger, but was not trained";
  EXPECT_EQ(worst[0]["before"], "<1><2><7><8>");
  EXPECT_EQ(worst[0]["token"], "<7>");
  EXPECT_EQ(worst[0]["after"], "");
  EXPECT_EQ(worst[0]["position"], 2);
  EXPECT_EQ(worst[0]["version"], 3);
  EXPECT_EQ(worst[0]["behaviour"], -1);
  EXPECT_EQ(worst[0]["parts"], json({{"cast", 0}, {"head", 1}}));
  EXPECT_EQ(worst[1]["delta"], 0.75);
  EXPECT_EQ(worst[1]["before"], "<1><2>");
  EXPECT_EQ(worst[2]["delta"], -0.5);
  EXPECT_EQ(worst[2]["after"], "<7>");
}

TEST(AttributionPageTest, AnIncomparableCaptureHasFindingsAndNoNumber) {
  Attribution a = Three();
  a.findings = {{DiscreteFault::kTokensDiffer, "1 of 3", 1}};
  const json data = json::parse(AttributionPageData(a, [](std::span<const int32_t>) -> std::string {
    ADD_FAILURE() << "no token is shown";
    return "";
  }));
  EXPECT_EQ(data["comparable"], false);
  EXPECT_EQ(data["findings"][0]["fault"], "tokens_differ");
  for (const char* absent : {"positions", "map", "worst", "parts", "metrics"}) {
    EXPECT_FALSE(data.contains(absent)) << absent;
  }
}

TEST(AttributionPageTest, WhatIsDecodedMayHoldAnyBytes) {
  Attribution a = Empty();
  Add({7}, {1}, {0}, false, a);
  const json data = json::parse(AttributionPageData(
      a, [](std::span<const int32_t>) { return std::string("\xff</script>"); }));
  EXPECT_EQ(data["worst"][0]["token"], "\xef\xbf\xbd</script>");
}

}  // namespace
}  // namespace tandem::drift
