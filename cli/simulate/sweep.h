// Runs the simulation over sizes and splits: tokens a second, where the time goes, what binds, and
// the best split of a size. Used by bench_simulate.cc. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/simulate/cluster_plan.h"

namespace tandem::simulate {

struct SplitResult {
  int64_t trainer_gpus = 0, rollout_gpus = 0;
  Sharding sharding = Sharding::kZero1;
  int64_t prompts = 0;
  StepTimes step;                // mean over settled steps
  double tokens_per_second = 0;  // of completions
  double trainer_share = 0;      // of time that trainer GPUs compute
  double rollout_share = 0;      // of time that servers have something to do
  double useful_share = 0;       // of all GPUs: computing or decoding
  double flops_share = 0;  // of all GPUs' published FLOP/s: model FLOPs of sampling and training
  double mean_batch = 0;   // completions that decode together on a server
  std::string binds;       // "decode", "one long completion", "train", "gradient sums", "push"
};

// One split. Errors as PlanCluster and SimulatePair.
absl::StatusOr<SplitResult> RunSplit(const ModelShape& shape, int64_t trainer_gpus,
                                     int64_t rollout_gpus, const Workload& workload,
                                     const Constants& constants);

// Trainer GPUs from a sixteenth of all to fifteen, as far as whole servers are left.
std::vector<int64_t> TrainerSizes(const ModelShape& shape, int64_t gpus);

struct SizeResult {
  int64_t gpus = 0;
  std::vector<SplitResult> splits;  // that fit, by trainer GPUs
  std::string reason;               // without any: why the last did not fit
  // By tokens a second; of those within 1 %, the one with the fewest trainer GPUs.
  const SplitResult* best() const;
  double most_tokens_per_second() const;  // of all splits; 0 without any
};
//   INVALID_ARGUMENT  lengths
absl::StatusOr<SizeResult> RunSize(const ModelShape& shape, int64_t gpus, const Workload& workload,
                                   const Constants& constants);

// What most_tokens_per_second becomes at the ends of each assumed range, one at a time.
struct RangeEffect {
  std::string name;
  double low = 0, high = 0;        // of the constant
  double at_low = 0, at_high = 0;  // most tokens a second of a split then, over those of now
};
absl::StatusOr<std::vector<RangeEffect>> RunRanges(const ModelShape& shape, int64_t gpus,
                                                   const Workload& workload,
                                                   const Constants& constants);

std::string ToText(const ModelShape& shape, const std::vector<SizeResult>& sizes);
std::string ToText(const std::vector<RangeEffect>& effects);
std::string ToJson(const ModelShape& shape, const Workload& workload,
                   const std::vector<SizeResult>& sizes, const std::vector<RangeEffect>& effects);

}  // namespace tandem::simulate
