// ParameterBuckets: the parameters and gradients of ranks that train together, in flat buckets that
// collectives work on in place. Used by train_step.cc.
//
// Each rank owns an equal part of every bucket and updates it (ZeRO-1): gradients are summed to the
// rank that owns them (reduce-scatter), new masters go to all (all-gather). The sum of a bucket
// begins when the last gradient of it is written by the last row that this rank has in an update,
// while the backward pass goes on. Operations begin in one order on all ranks, whatever their rows.
// All ranks get the same masters, bit for bit: each is made once, by its owner.
//
// Use from one thread at a time. Memory: what masters and gradients had before; operations under
// way hold what c10d copies.
#ifndef TANDEM_TRAINER_PARAMETER_BUCKETS_H_
#define TANDEM_TRAINER_PARAMETER_BUCKETS_H_

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/comm/collective.h"
#include "trainer/bucket_plan.h"
#include "trainer/policy.h"

namespace tandem::trainer {

class ParameterBuckets {
 public:
  // With a group of several: masters move into buckets of at most `bucket_bytes`, gradients become
  // zeros that lie alike, and both keep this storage. To be made before the first forward pass.
  // Null, or alone: nothing is moved, and nothing is ever sent. `parameters` and `group` must
  // outlive this object.
  ParameterBuckets(const std::vector<NamedParameter>* parameters, comm::Collective* group,
                   int64_t bucket_bytes);

  // What this rank updates: by parameter, then by place. Alone: every parameter whole.
  const std::vector<Slice>& own_slices() const { return slices_[rank()]; }

  // Of the methods below all ranks call the same in the same order. Errors: those of the
  // collective.

  // Nothing more will be added to the gradient of `parameter` before FinishGradients. At most once
  // for each between two of those. Begins the sums of buckets that are complete, in their order.
  // Not every rank need call it.
  void GradientIsComplete(size_t parameter);

  // Begins the sums that did not begin yet, and waits for all: gradients in own_slices() are now
  // sums over the ranks, all others zeros. After a backward pass or without one.
  absl::Status FinishGradients();

  // Every master becomes its owner's.
  absl::Status ShareMasters();

  // A tensor that lies like `parameter` and of which each rank has own_slices(): `own`, in that
  // order, each [num_elements] float32. Whole on rank 0, [master.numel()]; undefined elsewhere.
  // Sends one slice at a time.
  absl::StatusOr<at::Tensor> Collect(size_t parameter, const std::vector<at::Tensor>& own) const;

 private:
  struct Bucket {
    BucketPlan plan;
    at::Tensor masters, gradients;  // [plan.num_elements] float32
    size_t num_incomplete = 0;
  };

  size_t rank() const { return group_ == nullptr ? 0 : static_cast<size_t>(group_->rank()); }
  at::Tensor OwnPart(const at::Tensor& of_bucket) const;
  void BeginNext();

  const std::vector<NamedParameter>* const parameters_;
  comm::Collective* const group_;  // null when alone
  std::vector<Bucket> buckets_;
  std::vector<size_t> bucket_of_;           // [parameter]
  std::vector<std::vector<Slice>> slices_;  // [rank], by parameter, then by place
  std::vector<comm::Pending> under_way_;    // sums of the first buckets
};

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_PARAMETER_BUCKETS_H_
