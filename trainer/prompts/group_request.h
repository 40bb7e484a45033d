// MakeGroupRequest: what the trainer asks a rollout server for (stage 1). Pure.
#pragma once

#include <cstdint>
#include <string>

#include "proto/experience.pb.h"
#include "proto/rollout.pb.h"
#include "trainer/prompts/sampling_options.h"

namespace tandem::trainer {

// What the run's tokens are drawn by, but for the seed.
rollout::v1::SamplingParams MakeSampling(const TrainSamplingOptions& options);

// What all groups of a run have in common.
struct RunSampling {
  std::string run_id;
  int64_t seed = 0;  // of the run
  int64_t completions_per_prompt = 0;
  TrainSamplingOptions options;
};

// A group of run.completions_per_prompt completions of `prompt`, from weights of at least
// `min_weight_version`. The seed is a hash of the run's seed and the group: the same group samples
// the same way at any server. Asks for the support of every token, so that the policy can replay
// filters.
rollout::v1::GenerateGroupRequest MakeGroupRequest(const RunSampling& run,
                                                   const experience::v1::Prompt& prompt,
                                                   int64_t group_id, int64_t min_weight_version);

}  // namespace tandem::trainer
