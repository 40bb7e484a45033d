// AdamW over the policy's fp32 masters: stage 8, gradients -> new weights. Used by train_step.cc.
//
// The same update as torch.optim.AdamW after clip_grad_norm_: Step clips the global norm of the
// gradients and updates every parameter in one pass over its memory (fused_update.h has the
// formulas). With several ranks each updates only its slices and holds moments only for them
// (ZeRO-1); the ranks add up their squared norms before, so all of them clip alike.
//
// What holds: the result does not depend on the number of threads, because the norm is summed in
// blocks of a fixed size and in a fixed order. Gradients are zero after Step. Use from one thread.
// Memory: two fp32 numbers for each element of the slices, on the masters' device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/weights/host_tensor.h"
#include "trainer/optimizer/bucket_plan.h"
#include "trainer/optimizer/fused_update.h"
#include "trainer/optimizer/optimizer_options.h"
#include "trainer/policy/policy.h"

namespace tandem::trainer {

struct OptimizerUpdate {
  bool skipped = false;  // the gradient was not finite; only the gradients changed, to zero
  double grad_norm = 0;  // global, after grad_scale, before clipping
  bool clipped = false;
  double learning_rate = 0;
};

// The slices of parameters that an optimizer updates, and where they lie.
struct OwnSlices {
  std::vector<Slice> slices;  // sorted by parameter and place
  // True with sharded parameters: masters and gradients of the slices have memory of their own,
  // [num_elements] float32 each. False: the slices are views of the parameters, and both vectors
  // are empty.
  bool apart = false;
  std::vector<at::Tensor> masters, gradients;
};

// kByDevice: the loops of optimizer.cc on the CPU, LibTorch's kernels elsewhere. kLibTorch:
// LibTorch's kernels everywhere. Results agree to rounding.
enum class UpdateLoops { kByDevice, kLibTorch };

class AdamW {
 public:
  // Updates the slices of `own`, or every parameter whole without it. `parameters` must outlive
  // this object, and no tensor may change its storage. Throws c10::Error where the device has no
  // memory for the moments.
  AdamW(const std::vector<NamedParameter>* parameters, const OptimizerOptions& options,
        OwnSlices own, UpdateLoops loops = UpdateLoops::kByDevice);
  AdamW(const std::vector<NamedParameter>* parameters, const OptimizerOptions& options);

  // The next two throw c10::Error where a kernel of a device failed.

  // Sum of the squares of the gradients in the slices. A gradient that is not there counts as
  // zeros.
  double SquaredGradNorm() const;

  // Updates with the gradients times `grad_scale`, which is 1 / the denominator of the loss.
  // `squared_norm` is SquaredGradNorm, summed over all ranks.
  OptimizerUpdate Step(double squared_norm, double grad_scale = 1);

  // Sets the gradients of the slices to zero, and those of whole parameters where they are held.
  void ZeroGrads();

  // Puts together a tensor of the shape of `parameter` from every rank's slices of it: `own` are
  // this rank's, [num_elements] float32 each. Returns it in host memory on the rank that wants it,
  // and an undefined tensor elsewhere.
  using Collect = std::function<absl::StatusOr<at::Tensor>(size_t parameter,
                                                           const std::vector<at::Tensor>& own)>;

  // Moments in F32: "exp_avg.<name>" and "exp_avg_sq.<name>" for every parameter, in their order.
  // read() calls `collect`, and returns a tensor without bytes where that is undefined. The next
  // Step may change what was read, because on the CPU it is a view of the moments. This object must
  // outlive the result.
  std::vector<TensorSource> State(const Collect& collect) const;
  int64_t num_updates() const { return num_updates_; }
  int64_t state_bytes() const;  // of moments on this rank

  // Takes State's tensors, in any order, and the count of updates back. Reads each once, in the
  // order given, and keeps the elements that lie in the slices.
  //   INVALID_ARGUMENT  one is missing or of another shape or dtype (named); nothing was changed
  //   any code of read
  absl::Status Restore(const std::vector<TensorSource>& state, int64_t num_updates);

 private:
  struct Moments {
    at::Tensor exp_avg, exp_avg_sq;  // [num_elements] of the slice
    bool decays = false;
  };

  // The range [first, second) of own_.slices that belongs to the parameter.
  std::pair<size_t, size_t> SlicesOf(size_t parameter) const;
  at::Tensor Master(size_t slice) const;    // [num_elements]
  at::Tensor Gradient(size_t slice) const;  // [num_elements], or undefined before a backward pass
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
