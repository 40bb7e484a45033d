// AdamW over the policy's fp32 masters (arrow 8): gradients -> new weights. Used by train_step.cc.
//
// One Step clips the global gradient norm and updates every parameter in one pass. The same update
// as torch.optim.AdamW after clip_grad_norm_. Gradients are zero afterwards. The norm is summed in
// a fixed order: the result does not depend on the number of threads. Use from one thread. Memory:
// two fp32 numbers per parameter.
#ifndef TANDEM_TRAINER_OPTIMIZER_H_
#define TANDEM_TRAINER_OPTIMIZER_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/weights/host_tensor.h"
#include "trainer/optimizer_options.h"
#include "trainer/policy.h"

namespace tandem::trainer {

struct OptimizerUpdate {
  bool skipped = false;  // the gradient was not finite: nothing changed but the zeroed gradients
  double grad_norm = 0;  // global, after grad_scale, before clipping
  bool clipped = false;
  double learning_rate = 0;
};

class AdamW {
 public:
  // `parameters` must outlive this object and keep their storage.
  AdamW(const std::vector<NamedParameter>* parameters, const OptimizerOptions& options);

  // Updates with gradients times `grad_scale` (1 / the denominator of the loss). A parameter
  // without a gradient counts as one of zeros.
  OptimizerUpdate Step(double grad_scale = 1);

  void ZeroGrads();

  // Moments as F32 views: "exp_avg.<name>" and "exp_avg_sq.<name>" for every parameter, in their
  // order. They change with the next Step.
  std::vector<HostTensor> State() const;
  int64_t num_updates() const { return num_updates_; }

  // Takes State's tensors (in any order) and the count of updates back.
  //   INVALID_ARGUMENT  one is missing or of another shape or dtype (named); nothing was changed
  absl::Status Restore(const std::vector<HostTensor>& state, int64_t num_updates);

 private:
  struct Moments {
    at::Tensor exp_avg, exp_avg_sq;  // like the master
    bool decays = false;
  };

  const std::vector<NamedParameter>* const parameters_;
  const OptimizerOptions options_;
  std::vector<Moments> moments_;
  int64_t num_updates_ = 0;
};

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_OPTIMIZER_H_
