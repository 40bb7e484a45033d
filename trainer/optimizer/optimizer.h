// AdamW over the policy's fp32 masters (arrow 8): gradients -> new weights. Used by train_step.cc.
//
// One Step clips the global gradient norm and updates every parameter in one pass, or the slices of
// them that are this rank's; the moments of others are not held. The same update as
// torch.optim.AdamW after clip_grad_norm_. Gradients are zero afterwards. The norm is summed in a
// fixed order: the result does not depend on the number of threads. Use from one thread. Memory:
// two fp32 numbers per element of the slices, on the masters' device.
#ifndef TANDEM_TRAINER_OPTIMIZER_OPTIMIZER_H_
#define TANDEM_TRAINER_OPTIMIZER_OPTIMIZER_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/tensor_source.h"
#include "trainer/optimizer/bucket_plan.h"
#include "trainer/optimizer/fused_update.h"
#include "trainer/optimizer/optimizer_options.h"
#include "trainer/policy/policy.h"

namespace tandem::trainer {

struct OptimizerUpdate {
  bool skipped = false;  // the gradient was not finite: nothing changed but the zeroed gradients
  double grad_norm = 0;  // global, after grad_scale, before clipping
  bool clipped = false;
  double learning_rate = 0;
};

// What an optimizer updates of the parameters, and where it lies.
struct OwnSlices {
  std::vector<Slice> slices;  // sorted by parameter and place
  // Sharded: masters and gradients of the slices lie apart, [num_elements] float32 each. Otherwise
  // they are where the parameters have them, and these have no elements.
  bool apart = false;
  std::vector<at::Tensor> masters, gradients;
};

// Whose loops update: our own where the masters lie on the CPU and LibTorch's elsewhere, or
// LibTorch's. They agree to rounding.
enum class UpdateLoops { kByDevice, kLibTorch };

class AdamW {
 public:
  // Updates `own`; without it every parameter whole. `parameters` must outlive this object, and all
  // keep their storage. Throws c10::Error where the device has no memory for the moments.
  AdamW(const std::vector<NamedParameter>* parameters, const OptimizerOptions& options,
        OwnSlices own, UpdateLoops loops = UpdateLoops::kByDevice);
  AdamW(const std::vector<NamedParameter>* parameters, const OptimizerOptions& options);

  // Of the next two: c10::Error where a kernel of a device failed.

  // Sum of the squares of the gradients in the slices. A parameter without a gradient counts as one
  // of zeros.
  double SquaredGradNorm() const;

  // Updates with gradients times `grad_scale` (1 / the denominator of the loss). `squared_norm`:
  // SquaredGradNorm, summed over all ranks.
  OptimizerUpdate Step(double squared_norm, double grad_scale = 1);

  // Of the slices, and of the parameters whole where those are there.
  void ZeroGrads();

  // Given this rank's slices of a tensor that lies like `parameter`, [num_elements] float32 each,
  // the whole of it in host memory on the rank that wants it, undefined elsewhere.
  using Collect = std::function<absl::StatusOr<at::Tensor>(size_t parameter,
                                                           const std::vector<at::Tensor>& own)>;

  // Moments in F32: "exp_avg.<name>" and "exp_avg_sq.<name>" for every parameter, in their order.
  // What read() gives comes from `collect`, is without bytes where that is undefined, and may
  // change with the next Step (it does where it is a view of moments on the CPU). This object must
  // outlive them.
  std::vector<TensorSource> State(const Collect& collect) const;
  int64_t num_updates() const { return num_updates_; }
  int64_t state_bytes() const;  // held here

  // Takes State's tensors (in any order) and the count of updates back: reads each once, in the
  // order given, and keeps what lies in the slices.
  //   INVALID_ARGUMENT  one is missing or of another shape or dtype (named); nothing was changed
  //   any code of read
  absl::Status Restore(const std::vector<TensorSource>& state, int64_t num_updates);

 private:
  struct Moments {
    at::Tensor exp_avg, exp_avg_sq;  // [num_elements] of the slice
    bool decays = false;
  };

  // Slices of the parameter: [first, second) of the own ones.
  std::pair<size_t, size_t> SlicesOf(size_t parameter) const;
  at::Tensor Master(size_t slice) const;    // [num_elements]
  at::Tensor Gradient(size_t slice) const;  // [num_elements], or undefined: none yet
  bool OwnLoops() const;
  void UpdateByOwnLoops(size_t slice, const FusedCoefficients& c);
  void UpdateByLibTorch(FusedCoefficients c);

  const std::vector<NamedParameter>* const parameters_;
  const OptimizerOptions options_;
  const OwnSlices own_;
  const UpdateLoops loops_;
  std::vector<Moments> moments_;  // of each slice
  int64_t num_updates_ = 0;
};

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_OPTIMIZER_OPTIMIZER_H_
