// PolicyLearner: the Learner of a real run: Policy, TrainStep, AdamW and WeightCaster over one
// model (stages 4 to 8, and the cast of stage 9). Free of LibTorch in its header. Used by
// run_trainer.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "trainer/advantages/advantage_options.h"
#include "trainer/ranks/learner.h"
#include "trainer/ranks/rank_collectives.h"
#include "trainer/train_step_options.h"

namespace tandem::trainer {

struct PolicyLearnerSetup {
  std::string model_directory;
  LearnerOptions options;
  AdvantageOptions advantage;   // of stage 3, used again for KL in the reward
  double temperature = 1;       // of the sampler: the trained policy is the tempered one
  int64_t max_new_tokens = 0;   // the longest completion that the learner may see
  RankCollectives collectives;  // of the ranks that train together; must outlive the learner
  bool shard_parameters = false;
  uint64_t seed = 0;  // of what adapters begin from
};

// Loads the model directory as fp32 masters. On a device it is this thread's current one
// (ChooseDevice), and the learner reports the device's memory. Errors: those of ReadModelConfig,
// ReadModelTensors, MatchModelTensors and TrainStep::Create.
absl::StatusOr<std::unique_ptr<Learner>> CreatePolicyLearner(const PolicyLearnerSetup& setup);

}  // namespace tandem::trainer
