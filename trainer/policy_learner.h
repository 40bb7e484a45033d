// PolicyLearner: the Learner of a real run: Policy, TrainStep, AdamW and WeightCaster over one
// model (arrows 4 to 8 and the cast of 9). Free of LibTorch in its header. Used by main.cc.
#ifndef TANDEM_TRAINER_POLICY_LEARNER_H_
#define TANDEM_TRAINER_POLICY_LEARNER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "trainer/advantages.h"
#include "trainer/learner.h"
#include "trainer/learner_options.h"

namespace tandem::comm {
class Collective;
}

namespace tandem::trainer {

// Loads the model directory as fp32 masters. `advantage` is that of arrow 3, `temperature` that of
// the trained policy, `max_new_tokens` the longest completion it may see, `ranks` who trains together
// (null: alone; must outlive the learner), with `shard_parameters` each a part of the weights.
// Errors: those of ReadModelConfig, ReadModelTensors and MatchModelTensors.
absl::StatusOr<std::unique_ptr<Learner>> CreatePolicyLearner(const std::string& model_directory,
                                                             const LearnerOptions& options,
                                                             const AdvantageOptions& advantage,
                                                             double temperature,
                                                             int64_t max_new_tokens,
                                                             comm::Collective* ranks = nullptr,
                                                             bool shard_parameters = false);

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_POLICY_LEARNER_H_
