#include "trainer/rewards/model/reward_model.h"

#include <utility>

#include "common/base/status_macros.h"
#include "trainer/critic/critic_options.h"
#include "trainer/critic/scored_model.h"

namespace tandem::trainer {

absl::StatusOr<RewardModel> ReadRewardModel(const std::string& directory) {
  TANDEM_ASSIGN_OR_RETURN(ScoredModel model, ReadScoredModel(directory));
  if (!model.head.has_value()) {
    return InvalidArgument(directory, " has no ", kScoreWeight,
                           ": it is no reward model; tandem train-reward-model makes one");
  }
  return RewardModel{model.of_tokens ? RewardModelKind::kProcess : RewardModelKind::kOutcome,
                     std::move(model.config), std::move(model.weights), *std::move(model.head)};
}

}  // namespace tandem::trainer
