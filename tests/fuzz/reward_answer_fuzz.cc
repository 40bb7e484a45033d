// What a reward program, a reward service or a judge may answer: refused with a message, or read
// within its bounds. The first byte chooses who answers.
#include <cmath>
#include <memory>
#include <string_view>
#include <vector>

#include "common/base/check.h"
#include "trainer/rewards/external/http_reward.h"
#include "trainer/rewards/external/reward_question.h"
#include "trainer/rewards/judge/judge_text.h"

namespace tandem::trainer {
namespace {

constexpr std::string_view kCompletion = "caf\u00e9, so 42";

void Check(const RewardAnswer& answer) {
  if (!answer.ok()) return;
  TANDEM_CHECK(std::isfinite(answer->value));
  int64_t before = 0;
  for (const StepReward& step : answer->steps) {
    TANDEM_CHECK(step.end_byte > before && step.end_byte <= std::ssize(kCompletion));
    TANDEM_CHECK(std::isfinite(step.value));
    before = step.end_byte;
  }
}

void CheckShare(const absl::StatusOr<double>& share) {
  if (share.ok()) TANDEM_CHECK(*share >= 0 && *share <= 1);
}

void Answer(uint8_t who, std::string_view text) {
  const auto group = std::make_shared<HeldGroup>(
      std::vector<RewardInput>{{.text = kCompletion, .answer = text}, {.text = text}});
  const RewardQuestion question = {.group = group, .index = 0, .other = 1};
  if (who % 4 == 0) Check(ParseAnswer(text, "it", kCompletion));
  if (who % 4 == 1) {
    const auto answers = ParseRewardReply(text, {{question}});
    if (answers.ok()) Check(answers->at(0));
  }
  const auto reply = ParseJudgeReply(text);
  const std::string_view said = reply.ok() ? std::string_view(reply->text) : text;
  if (who % 4 == 2) CheckShare(ParseScore(said, {}));
  if (who % 4 == 3) CheckShare(ParseVerdict(said, {}));
  TANDEM_CHECK(FillRubric("{completion_a}{answer}", question).size() ==
               kCompletion.size() + text.size());
  static_cast<void>(FillRubric(text, question));
}

}  // namespace
}  // namespace tandem::trainer

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  tandem::trainer::Answer(data[0], {reinterpret_cast<const char*>(data + 1), size - 1});
  return 0;
}
