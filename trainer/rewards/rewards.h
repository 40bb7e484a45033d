// Rewards: one number per completion from its text and the prompt's answer (stage 3). Pure table of
// named components and their weighted sum; the component `subprocess` asks a program of the user
// (subprocess_reward.h). A failed component never becomes reward 0: it masks the completion.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/options/options.h"
#include "trainer/rewards/subprocess_reward.h"
#include "trainer/rewards/written_number.h"

namespace tandem::trainer {

// How a completion that ended by length is rewarded.
enum class TruncatedPolicy { kKeep, kMask, kZero, kPenalise };

struct RewardOptions {
  std::vector<std::pair<std::string, double>> weights = {{"number_answer", 1.0}};
  double pass_threshold = 1.0;    // Reward::correct
  std::string regex;              // component regex: first group (or whole match) is the answer
  std::string format;             // component format: must match the whole text
  double length_soft_tokens = 0;  // component length_penalty: 0 up to here ...
  double length_hard_tokens = 0;  // ... falling linearly to -1 here
  double number_partial = 0.2;    // number_answer: the answer is among the numbers
  bool number_needs_stop = true;  // number_answer: full reward only if ended by a stop
  TruncatedPolicy truncated = TruncatedPolicy::kKeep;
  double truncated_penalty = 0.5;  // penalise: subtracted
  SubprocessRewardOptions subprocess;
};
void BindOptions(OptionBinder& binder, RewardOptions& options);

struct RewardInput {
  std::string_view text;         // of the completion, without the stop token
  std::string_view answer;       // ground truth
  std::string_view prompt;       // as rendered
  std::string_view source_json;  // the prompt's line
  int64_t num_tokens = 0;        // of the completion, stop token included
  bool truncated = false;        // ended by length
};

// A reward of a part of the completion's text, as process rewards are.
struct StepReward {
  int64_t end_byte = 0;  // where the part ends in RewardInput::text, exclusive; in rising order
  double value = 0;
};

struct Reward {
  double value = 0;               // of the completion as a whole, without `steps`
  std::vector<StepReward> steps;  // added to it; empty for most rewards
  // Is the answer right? The weighted sum of the components that judge the answer reaches
  // pass_threshold. What shapes the reward beside it (format, length_penalty, truncation) does not
  // count, unless no component judges the answer: then format does.
  bool correct = false;
  std::vector<std::pair<std::string, double>> parts;  // before weights
  std::string mask_reason;  // not empty: do not train on it ("truncated", "reward_failed: ...")
};

// Whether a completion masked for `mask_reason` has no reward.
inline bool IsRewardFailure(std::string_view reason) { return reason.starts_with("reward_failed"); }

// What follows the last "####" of a GSM8K answer as a number; without one, the last number.
//   NOT_FOUND  no number
absl::StatusOr<WrittenNumber> Gsm8kNumber(std::string_view text);

// 1 if the completion ended by itself (or needs_stop is off) and its last number is `want`;
// `partial` if any number is; else 0.
double NumberAnswer(const RewardInput& input, const WrittenNumber& want, double partial,
                    bool needs_stop);

// Thread-compatible; memory: one subprocess if a component asks for it.
class RewardFunction {
 public:
  //   INVALID_ARGUMENT  no component, unknown component (names those there are), a pattern that
  //   does
  //                     not compile or is missing, hard length not above soft, no subprocess
  //                     command, a pass_threshold that no completion can reach
  static absl::StatusOr<std::unique_ptr<RewardFunction>> Create(const RewardOptions& options);
  ~RewardFunction();

  // One result per input, in order. Never fails as a whole.
  std::vector<Reward> Score(const std::vector<RewardInput>& inputs);

  const RewardOptions& options() const { return options_; }

 private:
  struct Patterns;
  explicit RewardFunction(const RewardOptions& options);
  absl::StatusOr<double> Component(const std::string& name, const RewardInput& input);
  Reward ScoreOne(const RewardInput& input);

  const RewardOptions options_;
  std::unique_ptr<Patterns> patterns_;
  std::unique_ptr<SubprocessReward> subprocess_;
};

}  // namespace tandem::trainer
