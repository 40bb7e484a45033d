// RewardModelOptions: section `reward.model` of a run file: a reward model that scores completions
// in the trainer's process, and how its scores become rewards. Free of LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/model/numerics.h"
#include "common/options/options.h"
#include "trainer/preferences/process_reward.h"
#include "trainer/preferences/reward_statistics.h"

namespace tandem::trainer {

struct RewardModelOptions {
  std::vector<std::string> paths;  // directories; several are an ensemble, as several heads are
  EnsembleAggregation ensemble = EnsembleAggregation::kMean;
  double std_weight = 1;  // of mean_minus_std
  // A process reward model gives each step a probability. They become one reward of the completion
  // by `steps`, or with each_step each is a reward at the end of its step.
  StepAggregation steps = StepAggregation::kMin;
  bool each_step = false;
  StepOptions split;  // what is a step
  ComputeDType dtype = ComputeDType::kFp32;
  int64_t threads = 0;          // of the pass; 0: as the trainer's
  int64_t batch_tokens = 4096;  // of a row: bounds the memory of a pass
};
void BindOptions(OptionBinder& binder, RewardModelOptions& options);

// Reads nothing.
//   INVALID_ARGUMENT  no path; a pattern that does not fit the boundary of steps
absl::Status CheckRewardModelOptions(const RewardModelOptions& options);

}  // namespace tandem::trainer
