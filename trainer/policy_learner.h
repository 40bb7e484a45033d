// PolicyLearner: the Learner of a real run: Policy, TrainStep, AdamW and WeightCaster over one
// model (arrows 4 to 8 and the cast of 9). Free of LibTorch in its header. Used by main.cc.
#ifndef TANDEM_TRAINER_POLICY_LEARNER_H_
#define TANDEM_TRAINER_POLICY_LEARNER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "trainer/experience/advantages.h"
#include "trainer/learner_options.h"
#include "trainer/ranks/learner.h"
#include "trainer/ranks/rank_groups.h"

namespace tandem::trainer {

// Loads the model directory as fp32 masters. `advantage` is that of arrow 3, `temperature` that of
// the trained policy, `max_new_tokens` the longest completion it may see, `ranks` who trains
// together (must outlive the learner), with `shard_parameters` each a part of the weights. On a
// device it is this thread's current one (ChooseDevice), and the learner reports the device's
// memory. Errors: those of ReadModelConfig, ReadModelTensors, MatchModelTensors and
// TrainStep::Create.
absl::StatusOr<std::unique_ptr<Learner>> CreatePolicyLearner(
    const std::string& model_directory, const LearnerOptions& options,
    const AdvantageOptions& advantage, double temperature, int64_t max_new_tokens,
    const RankGroups& ranks = {}, bool shard_parameters = false);

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_POLICY_LEARNER_H_
