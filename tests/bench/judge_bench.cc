// How long a judge that takes a second keeps 512 completions waiting: eight groups of 64 are
// submitted to a RewardQueue whose judge, in this process, answers after a second and serves 64
// requests at a time. At best that is 8 s. Prints one JSON line, and exits with 1 over 12 s.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <semaphore>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/files/file_system.h"
#include "tests/support/json_service.h"
#include "trainer/rewards/reward_queue.h"

namespace tandem::trainer {
namespace {

constexpr int kGroups = 8, kCompletions = 64, kPlaces = 64;
constexpr double kMostSeconds = 12;
constexpr char kReply[] =
    R"({"choices":[{"message":{"content":"7"},"finish_reason":"stop"}],"usage":{"total_tokens":9}})";

int Bench(const std::string& directory) {
  std::counting_semaphore<kPlaces> places(kPlaces);
  testing::JsonService judge([&](const testing::JsonService::Request&) {
    places.acquire();
    usleep(1'000'000);
    places.release();
    return testing::JsonService::Reply{.body = kReply};
  });
  const std::string rubric = directory + "/rubric.txt";
  if (!WriteFileAtomically(rubric, "Rate this from 0 to 10: {completion}").ok()) return 2;
  RewardOptions options;
  options.weights = {{"judge", 1}};
  options.judge.client.url = judge.url() + "/v1";
  options.judge.model = "mock";
  options.judge.rubric_file = rubric;
  const auto rewards = RewardFunction::Create(options);
  if (!rewards.ok()) return 2;
  RewardQueue queue(rewards->get(), [] {});
  int64_t rewarded = 0;
  double submitted = 0;
  const double start = MonotonicSeconds();
  for (int g = 0; g < kGroups; ++g) {
    std::vector<std::string> texts;
    std::vector<RewardInput> inputs;
    for (int i = 0; i < kCompletions; ++i) texts.push_back(absl::StrCat("answer ", g, " ", i));
    for (const std::string& text : texts) inputs.push_back({.text = text, .source_json = "{}"});
    const absl::Status asked = queue.Submit(inputs, [&](const std::vector<Reward>& scored) {
      for (const Reward& reward : scored) rewarded += reward.value == 0.7;
      return absl::OkStatus();
    });
    if (!asked.ok()) return 2;
  }
  submitted = MonotonicSeconds() - start;
  while (queue.num_open() > 0) {
    queue.WaitFor(std::chrono::seconds(1));
    if (!queue.Deliver().ok()) return 2;
  }
  const double seconds = MonotonicSeconds() - start;
  std::printf("{\"completions\":%d,\"rewarded\":%ld,\"seconds\":%.3f,\"submit_seconds\":%.4f}\n",
              kGroups * kCompletions, static_cast<long>(rewarded), seconds, submitted);
  return rewarded == kGroups * kCompletions && seconds <= kMostSeconds ? 0 : 1;
}

// Nanoseconds a completion costs whose components are built in.
void BenchBuiltIn() {
  const auto rewards = RewardFunction::Create({.weights = {{"number_answer", 1}}});
  if (!rewards.ok()) std::abort();
  const std::string text = "First 3 * 4 = 12, and then 12 + 30 = 42, so the answer is 42.";
  const std::vector<RewardInput> inputs(64, {.text = text, .answer = "42", .source_json = "{}"});
  constexpr int kTimes = 2000;
  double sum = 0;
  const double start = MonotonicSeconds();
  for (int i = 0; i < kTimes; ++i) sum += (*rewards)->Score(inputs)[0].value;
  const double microseconds = (MonotonicSeconds() - start) / kTimes * 1e6;
  std::printf("{\"built_in_us_per_64\":%.1f,\"check\":%.0f}\n", microseconds, sum);
}

}  // namespace
}  // namespace tandem::trainer

int main(int argc, char** argv) {
  tandem::trainer::BenchBuiltIn();
  return tandem::trainer::Bench(argc > 1 ? argv[1] : "/tmp");
}
