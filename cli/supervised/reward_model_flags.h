// Flags of the commands that score completions by a reward model, and the model they name.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "trainer/rewards/model/reward_scorer.h"

namespace tandem::cli {

// The values of choices as words of the command line.
struct RewardModelWords {
  std::string dtype = "fp32", ensemble = "mean", steps = "min", split = "newline";

  void Apply(trainer::RewardModelOptions& options) const;
};

// `name` DIR, which may be given several times.
CLI::Option* AddRewardModelFlag(CLI::App* sub, const char* name,
                                trainer::RewardModelOptions& options);
// --dtype, --ensemble, --std-weight, --steps
void AddAggregationFlags(CLI::App* sub, trainer::RewardModelOptions& options,
                         RewardModelWords& words);
// --boundary and --boundary-pattern, where texts are split into steps.
void AddSplitFlags(CLI::App* sub, trainer::StepOptions& options, std::string& boundary);
trainer::StepBoundary BoundaryOf(const std::string& word);

// Loads the directories, with options.threads kernel threads of this process.
//   NOT_FOUND  of CheckModelDirectory;  others of RewardScorer::Load
absl::StatusOr<std::unique_ptr<trainer::RewardScorer>> LoadRewardModel(
    const trainer::RewardModelOptions& options);

}  // namespace tandem::cli
