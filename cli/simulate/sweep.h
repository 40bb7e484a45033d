// Runs the simulation over numbers and splits of GPUs: tokens per second, where the time goes, what
// limits the speed, and the best split. bench_simulate.cc uses it. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/simulate/cluster_plan.h"

namespace tandem::simulate {

struct SplitResult {
  int64_t trainer_gpus = 0, rollout_gpus = 0;
  Sharding sharding = Sharding::kZero1;
  int64_t prompts = 0;
  StepTimes step;                // mean over steps in the steady state
  double tokens_per_second = 0;  // of completions
  double trainer_share = 0;      // share of the time in which trainer GPUs compute
  double rollout_share = 0;      // share of the time in which servers have work
  double useful_share = 0;       // the same over all GPUs
  double flops_share = 0;        // model FLOP/s of sampling and training, over the published FLOP/s
  double mean_batch = 0;         // completions that decode together on a server
  std::string binds;  // "decode", "one long completion", "train", "gradient sums", "push"
};

// Simulates one split. Errors are those of PlanCluster and SimulatePair.
absl::StatusOr<SplitResult> RunSplit(const ModelShape& shape, int64_t trainer_gpus,
                                     int64_t rollout_gpus, const Workload& workload,
                                     const Constants& constants);

// Numbers of trainer GPUs from 1/16 to 15/16 of all that leave whole servers.
std::vector<int64_t> TrainerSizes(const ModelShape& shape, int64_t gpus);

struct SizeResult {
  int64_t gpus = 0;
  std::vector<SplitResult> splits;  // those that fit, by trainer GPUs
  std::string reason;               // if none fits: why the last one does not
  // The split with the most tokens per second, or one within 1 % of it with fewer trainer GPUs.
  // Null if none fits.
  const SplitResult* best() const;
  double most_tokens_per_second() const;  // over all splits; 0 if none fits
};
//   INVALID_ARGUMENT  the lengths do not parse
absl::StatusOr<SizeResult> RunSize(const ModelShape& shape, int64_t gpus, const Workload& workload,
                                   const Constants& constants);

// How most_tokens_per_second changes at the ends of the range of each assumption, one at a time.
struct RangeEffect {
  std::string name;
  double low = 0, high = 0;        // of the constant
  double at_low = 0, at_high = 0;  // most_tokens_per_second there, over that of the default
};
absl::StatusOr<std::vector<RangeEffect>> RunRanges(const ModelShape& shape, int64_t gpus,
                                                   const Workload& workload,
                                                   const Constants& constants);

std::string ToText(const ModelShape& shape, const std::vector<SizeResult>& sizes);
std::string ToText(const std::vector<RangeEffect>& effects);
std::string ToJson(const ModelShape& shape, const Workload& workload,
                   const std::vector<SizeResult>& sizes, const std::vector<RangeEffect>& effects);

}  // namespace tandem::simulate
