// What external scorers are asked about completions, and what they answer: the texts of a group
// that threads may keep, one question, one answer, and their JSON. Pure. Used by the components of
// a reward that ask a program, a service or a judge.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "trainer/rewards/reward.h"

namespace tandem::trainer {

// The inputs of one group with texts of their own, so that they outlive the messages they came
// from. Completions of one group share the copies of their prompt, answer and source.
class HeldGroup {
 public:
  explicit HeldGroup(std::span<const RewardInput> inputs);
  HeldGroup(const HeldGroup&) = delete;
  HeldGroup& operator=(const HeldGroup&) = delete;

  const std::vector<RewardInput>& inputs() const { return inputs_; }

 private:
  std::deque<std::string> texts_;               // never moved: the inputs view them
  std::deque<std::vector<int32_t>> token_ids_;  // likewise
  std::vector<RewardInput> inputs_;             // by completion
};

// A question about one completion, or about which of two is better (pairwise judge).
struct RewardQuestion {
  std::shared_ptr<const HeldGroup> group;  // shared by the questions of the group, on many threads
  size_t index = 0;                        // of the completion in the group
  std::optional<size_t> other;             // shown after it; none: it is judged alone
  int64_t sample = 0;                      // number of the repetition, for judges that draw
  size_t scorer = 0;                       // of a worker that knows several (functions in Python)

  const RewardInput& input() const { return group->inputs()[index]; }
};

// What a scorer said of one completion; of a comparison, 1 if the first is better, 0 if the other
// is, 0.5 for a tie.
struct ExternalAnswer {
  double value = 0;
  std::vector<StepReward> steps;
  // The scorer has nothing to say of this completion: it has no part in the sum.
  bool is_left_out = false;
  std::vector<double> token_rewards;                       // Reward::token_rewards
  std::vector<std::pair<std::string, double>> parts;       // which `value` is made of, for metrics
  std::vector<std::pair<std::string, std::string>> notes;  // Reward::notes
};
using RewardAnswer = absl::StatusOr<ExternalAnswer>;

// {"prompt":..,"completion":..,"answer":..,"source":{..},"truncated":false} as one line of JSON;
// bytes that are no UTF-8 are replaced. `id`: a first field {"id":7,...; none without it.
std::string QuestionJson(const RewardInput& input, std::optional<int64_t> id = std::nullopt);

// Reads {"reward":x}, {"reward":x,"steps":[{"end":4,"reward":y},..]} or {"error":".."}, or a number
// alone. `who` opens the messages ("reward program"), `text` is the completion that was judged.
//   ABORTED           the scorer reports an error of its own
//   INVALID_ARGUMENT  a reward that is missing or not finite; steps that do not rise, or that end
//                     outside of the text or within one of its characters
RewardAnswer ParseAnswer(std::string_view json, std::string_view who, std::string_view text);

// Reads [{"end":4,"reward":y},..], the rewards of parts of `text`. Errors are those of ParseAnswer.
absl::StatusOr<std::vector<StepReward>> ParseSteps(const nlohmann::json& steps,
                                                   std::string_view who, std::string_view text);

// An answer as ParseAnswer reads it, with every bit of its numbers.
std::string AnswerJson(const ExternalAnswer& answer);

// A digest of `parts`, such as all that decides an answer: 32 hex digits of XXH3-128. Each part
// counts with its length, so that no two lists of parts are the same bytes.
std::string DigestOfParts(std::span<const std::string_view> parts);

}  // namespace tandem::trainer
