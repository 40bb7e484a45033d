// Best of n by a reward model, for the commands that sample completions with an engine in this
// process.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/supervised/reward_model_flags.h"
#include "rollout_server/engine/engine.h"
#include "trainer/rewards/model/reward_scorer.h"

namespace tandem::cli {

struct BestOfFlags {
  int32_t n = 0;  // completions of each prompt; 0: off
  trainer::RewardModelOptions model;
  RewardModelWords words;
};
// --best-of, --reward-model, --reward-ensemble, --reward-std-weight, --reward-steps, --boundary,
// --boundary-pattern
void AddBestOfFlags(CLI::App* sub, BestOfFlags& flags);

// Null without --best-of.
//   INVALID_ARGUMENT (exit code 2)  one of --best-of and --reward-model without the other
//   others of LoadRewardModel
absl::StatusOr<std::unique_ptr<trainer::RewardScorer>> LoadBestOf(BestOfFlags& flags,
                                                                  int64_t num_threads);

// The completion with the largest reward; of equal ones the first. One that cannot be scored is
// never the best.
struct BestCompletion {
  size_t index = 0;
  double reward = 0;
};
//   INVALID_ARGUMENT  none can be scored (with why)
absl::StatusOr<BestCompletion> ChooseBest(
    trainer::RewardScorer& scorer, std::string_view prompt,
    const std::vector<rollout::FinishedCompletion>& completions);

}  // namespace tandem::cli
