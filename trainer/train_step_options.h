// The options of stages 4 to 8. Free of LibTorch, so that every reader of a run file can bind them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/lora/lora_shape.h"
#include "common/model/numerics.h"
#include "common/model/quantisation_plan.h"
#include "common/offpolicy/correction_options.h"
#include "common/options/options.h"
#include "trainer/critic/critic_options.h"
#include "trainer/loss/policy_loss_options.h"
#include "trainer/optimizer/optimizer_options.h"
#include "trainer/step/reference_options.h"
#include "trainer/weight_push/weight_cast.h"

namespace tandem::trainer {

struct TrainStepOptions {
  int64_t microbatch_tokens = 2048;
  int64_t num_minibatches = 1;
  int64_t num_epochs = 1;
  double target_kl = 0;  // of a token, proximal to target; 0: none
  offpolicy::CorrectionOptions correction;
  PolicyLossOptions loss;
  OptimizerOptions optimizer;
  CriticOptions critic;
  ReferenceOptions reference;           // read where there is a reference policy
  std::vector<std::string> peer_names;  // systems under whose names drift is reported too
};

// num_minibatches, num_epochs, microbatch_tokens, and the sections correction, loss, optimizer and
// metrics.
void BindOptions(OptionBinder& binder, TrainStepOptions& options);

// Checks what the range of a single field cannot express.
//   INVALID_ARGUMENT  CheckOptions of correction, objective and critic; kl_ratio_weighted, k2 or k3
//                     with the KL in the reward; kl_control adaptive without; loss.kind penalty with
//                     one update per step; a decay without decay_updates; beta of 1; a peer that is
//                     unknown or named twice; loss.kind preference with a correction by token or
//                     centred on the behaviour policy, another KL or entropy term, or a loss that
//                     is not of pairs of completions
absl::Status CheckOptions(const TrainStepOptions& options);

// How stages 4 to 8 compute. PolicyLearner (policy_learner.cc) hands the parts on.
struct LearnerOptions {
  ComputeDType dtype = ComputeDType::kFp32;
  Device device = Device::kCpu;
  Numerics numerics = Numerics::kFast;
  // Weights that the forward sees as rollout servers store them (server.engine.weights).
  QuantisationOptions fake_quantise;
  LoraOptions lora;         // adapters in place of all weights
  int64_t num_threads = 0;  // 0: the cores of the machine
  bool checkpoint_activations = false;
  bool measure_reference_kl = false;  // also without a KL term in the loss
  TrainStepOptions step;
  WeightCastOptions cast;  // bound beside the push it belongs to
};
// Everything but `cast`.
void BindOptions(OptionBinder& binder, LearnerOptions& options);

//   INVALID_ARGUMENT  options that adapters contradict: dropout with numerics exact, fake_quantise
//                     with numerics fast, reference.kind ema, lora.start without a rank
absl::Status CheckLora(const LearnerOptions& options);

}  // namespace tandem::trainer
