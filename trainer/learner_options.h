// LearnerOptions: how arrows 4 to 8 compute. Free of LibTorch, so that every reader of a run file can
// bind it. PolicyLearner (policy_learner.cc) hands the parts on.
#ifndef TANDEM_TRAINER_LEARNER_OPTIONS_H_
#define TANDEM_TRAINER_LEARNER_OPTIONS_H_

#include <cstdint>

#include "common/base/options.h"
#include "trainer/compute_dtype.h"

namespace tandem::trainer {

struct LearnerOptions {
  ComputeDType dtype = ComputeDType::kFp32;
  int64_t num_threads = 0;  // 0: the cores of the machine
};
void BindOptions(OptionBinder& binder, LearnerOptions& options);

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_LEARNER_OPTIONS_H_
