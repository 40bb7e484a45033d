// RewardModelAsker: the component `model` of a reward. It scores completions by a RewardScorer
// in this process, on the thread of its pool, so that groups are sampled meanwhile. Used by
// whoever makes a RewardFunction and loads LibTorch.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "trainer/rewards/external/question_pool.h"
#include "trainer/rewards/external_parts.h"
#include "trainer/rewards/model/reward_scorer.h"

namespace tandem::trainer {

// Use from one thread.
class RewardModelAsker : public Asker {
 public:
  // `scorer` is used by nobody else while this exists; `tally` and `end` must outlive it.
  RewardModelAsker(std::shared_ptr<RewardScorer> scorer, RewardTally* tally, EndSign* end);

  // The questions of a group in one packed pass, the prompt once.
  //   INVALID_ARGUMENT  as RewardScorer::Score and Split, or a reward that is not finite
  //   CANCELLED         the run ends, found between two groups
  std::vector<RewardAnswer> Ask(std::span<const RewardQuestion> questions) override;

 private:
  std::vector<RewardAnswer> AskGroup(std::span<const RewardQuestion> questions);

  const std::shared_ptr<RewardScorer> scorer_;
  RewardTally* const tally_;
  EndSign* const end_;
  bool has_threads_ = false;
};

// The answer of a reward model about one completion whose steps end at `ranges`; with each_step the
// probabilities are rewards of the steps and the completion as a whole has none.
//   INVALID_ARGUMENT  a reward that is not finite
RewardAnswer AnswerOf(const ModelReward& reward, std::span<const StepRange> ranges,
                      const RewardModelOptions& options);

// What is scored of a completion, and the ranges of its steps in it.
struct SplitText {
  TextToScore text;
  std::vector<StepRange> ranges;
};
absl::StatusOr<SplitText> SplitForScoring(const RewardScorer& scorer, std::string_view prompt,
                                          std::string_view completion, bool is_truncated);

// Makes the asker of a RewardFunction; shares the scorer with the pool's thread, which may hold the
// last reference.
MakeModelAsker AskModel(std::shared_ptr<RewardScorer> scorer);

}  // namespace tandem::trainer
