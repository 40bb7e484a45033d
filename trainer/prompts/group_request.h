// The request for a completion group that the trainer sends to a rollout server (stage 1). Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/options/options.h"
#include "proto/experience.pb.h"
#include "proto/rollout.pb.h"

namespace tandem::trainer {

// How the completions to train on are sampled: section trainer.sampling of a run file.
// min_new_tokens is bound so that it can be refused with a reason: a policy cannot be trained on
// samples that were kept from ending.
struct TrainSamplingOptions {
  double temperature = 1;
  int64_t max_new_tokens = 256;
  int64_t top_k = 0;
  double top_p = 1;
  double min_p = 0;
  int64_t min_new_tokens = 0;
};
void BindOptions(OptionBinder& binder, TrainSamplingOptions& options);

// The sampling parameters of the run's groups, without the seed.
rollout::v1::SamplingParams MakeSampling(const TrainSamplingOptions& options);

// The parts of a request that the groups of a run, or of one evaluation, share.
struct RunSampling {
  std::string run_id;
  int64_t seed = 0;  // of the run
  int64_t completions_per_prompt = 0;
  rollout::v1::SamplingParams sampling;     // without the seed
  bool greedy_baseline = false;             // one greedy completion more
  std::optional<rollout::v1::Turns> turns;  // none: completions of one turn
};

// Further completions of a training group are a request of their own, with this added to its id.
inline constexpr int64_t kFirstExtension = int64_t{1} << 43;
// Ids of evaluation groups lie far above those of training groups.
inline constexpr int64_t kFirstEvaluationGroup = int64_t{1} << 44;
inline bool IsExtension(int64_t group_id) {
  return group_id >= kFirstExtension && group_id < kFirstEvaluationGroup;
}
inline bool IsEvaluationGroup(int64_t group_id) { return group_id >= kFirstEvaluationGroup; }

// A group of run.completions_per_prompt completions of `prompt`, from weights of at least
// `min_weight_version`. The seed is a hash of the run's seed and the group: the same group samples
// the same way at any server.
rollout::v1::GenerateGroupRequest MakeGroupRequest(const RunSampling& run,
                                                   const experience::v1::Prompt& prompt,
                                                   int64_t group_id, int64_t min_weight_version);

}  // namespace tandem::trainer
