// MakeGroupRequest: what the trainer asks a rollout server for (arrow 1). Pure.
#ifndef TANDEM_TRAINER_GROUP_REQUEST_H_
#define TANDEM_TRAINER_GROUP_REQUEST_H_

#include <cstdint>
#include <string>

#include "proto/experience.pb.h"
#include "proto/rollout.pb.h"
#include "trainer/trainer_options.h"

namespace tandem::trainer {

// What the run's tokens are drawn by, but for the seed.
rollout::v1::SamplingParams MakeSampling(const TrainSamplingOptions& options);

// A group of options.completions_per_prompt completions of `prompt`, from weights of at least
// `min_weight_version`. The seed is a hash of the run's seed and the group: the same group draws
// the same way at any server. Asks for the support of every token, so that the policy can replay
// filters.
rollout::v1::GenerateGroupRequest MakeGroupRequest(const TrainerOptions& options,
                                                   const std::string& run_id,
                                                   const experience::v1::Prompt& prompt,
                                                   int64_t group_id, int64_t min_weight_version);

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_GROUP_REQUEST_H_
