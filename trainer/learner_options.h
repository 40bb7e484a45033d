// LearnerOptions: how stages 4 to 8 compute. Free of LibTorch, so that every reader of a run file
// can bind it. PolicyLearner (policy_learner.cc) hands the parts on.
#pragma once

#include <cstdint>

#include "common/model/numerics.h"
#include "common/options/options.h"
#include "trainer/train_step_options.h"
#include "trainer/weight_push/weight_cast.h"

namespace tandem::trainer {

struct LearnerOptions {
  ComputeDType dtype = ComputeDType::kFp32;
  Device device = Device::kCpu;
  Numerics numerics = Numerics::kFast;
  int64_t num_threads = 0;  // 0: the cores of the machine
  bool checkpoint_activations = false;
  bool measure_reference_kl = false;  // also without a KL term in the loss
  TrainStepOptions step;
  WeightCastOptions cast;  // bound beside the push it belongs to
};
// Everything but `cast`.
void BindOptions(OptionBinder& binder, LearnerOptions& options);

}  // namespace tandem::trainer
