// ParameterBuckets: parameters and gradients of ranks that train together, in flat buckets on which
// the collective operations work in place. Used by train_step.cc.
//
// The idea: each rank owns an equal part of every bucket (bucket_plan.h). A reduce-scatter sums the
// gradients of a bucket and leaves each rank the sum of its part; the rank updates that part; an
// all-gather gives the new masters to all. So each sum and each master is computed once, by its
// owner, and all ranks hold the same bits. Optimizer state exists once over all ranks (ZeRO stage
// 1, Rajbhandari et al., SC 2020).
//
//   replicated  Every rank holds all masters and gradients. The sum of a bucket begins when the
//               backward pass of this rank's last row has written the last gradient in it, while
//               the pass goes on.
//   sharded     A rank holds only its parts (ZeRO stage 3, as FSDP: Zhao et al., VLDB 2023). A
//               bucket holds what one stage of the model needs. It is gathered when a pass comes to
//               the stage, the next one while the stage is computed, and its memory is released
//               afterwards; its gradients are summed right after a backward stage. All ranks make
//               the same passes (Policy::RunEmptyPass).
//
// What holds: operations begin in one order on all ranks, whatever rows a rank has. Use from one
// thread at a time. Memory: replicated, what masters and gradients take anyway; sharded, that
// divided by the ranks, and at most two whole buckets of masters and two of gradients. Operations
// under way hold what c10d copies. All of it is on the device on which the masters were at the
// start.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/comm/collective.h"
#include "trainer/optimizer/bucket_plan.h"
#include "trainer/policy/policy.h"
#include "trainer/ranks/rank_collectives.h"

namespace tandem::trainer {

class ParameterBuckets {
 public:
  // Gives memory to masters that have none. With several ranks masters move into buckets, masters
  // that require gradients get gradients of zeros that are laid out alike, and both keep this
  // storage; sharded, the storage has memory only while a pass needs it. Alone, nothing is moved
  // and nothing is ever sent. To be made before the first pass. stages[s] are the parameters that
  // stage s of a backward pass uses. `parameters` and the collectives must outlive this object.
  ParameterBuckets(const std::vector<NamedParameter>* parameters,
                   const std::vector<std::vector<size_t>>& stages,
                   const RankCollectives& collectives, const BucketOptions& options);

  // The slices that this rank updates, by parameter, then by place. Alone: every parameter whole.
  const std::vector<Slice>& own_slices() const { return slices_[rank()]; }
  // Masters and gradients of those slices, [num_elements] each, in the memory that holds them
  // always.
  std::vector<at::Tensor> OwnMasters() const { return OwnOf(&Bucket::own_masters, false); }
  std::vector<at::Tensor> OwnGradients() const { return OwnOf(&Bucket::own_gradients, true); }

  bool sharded() const { return sharded_; }
  // Bytes of masters and gradients that this rank always holds.
  int64_t master_bytes() const { return HeldBytes(/*gradients=*/false); }
  int64_t gradient_bytes() const { return HeldBytes(/*gradients=*/true); }
  // The most bytes of whole sharded buckets that were in memory at the same time.
  int64_t peak_gathered_bytes() const { return peak_gathered_bytes_; }

  // All ranks call the methods below in the same order, except EndStage of replicated parameters.
  // Errors: those of the collective.

  // To be called when a pass comes to a stage, and when it leaves it. Sharded, failure() keeps the
  // first failure and the pass goes on with zeros for masters, so ask for it after every pass.
  void BeginStage(Pass pass, size_t stage);
  void EndStage(Pass pass, size_t stage);
  const absl::Status& failure() const { return failed_; }

  // Says that the next backward pass is this rank's last one before FinishGradients. Replicated,
  // its stages begin the sums of complete buckets. A rank without rows makes no such call.
  void ExpectLastPass() { last_pass_ = true; }

  // Begins the sums that have not begun, and waits for all of them. Afterwards gradients in
  // own_slices() are sums over the ranks, and the others are zeros or have no memory. Also for a
  // rank that made no backward pass.
  absl::Status FinishGradients();

  // To be called when own masters changed: every rank gets the masters of their owners, at once or,
  // sharded, when a pass needs them.
  absl::Status ShareMasters();

  // Sets the master of a parameter to `whole`, all its elements in float32 on any device, as far as
  // this rank holds it. All ranks pass the same; replicated, ShareMasters need not follow.
  void Load(size_t parameter, const at::Tensor& whole);

  // Puts together a tensor of the shape of `parameter`, of which each rank has the elements in its
  // own_slices(): `own`, in that order, each [num_elements] of `dtype`, on any device. Returns
  // [master.numel()] on the host of rank 0, undefined elsewhere. Sends one slice at a time.
  absl::StatusOr<at::Tensor> Collect(size_t parameter, const std::vector<at::Tensor>& own,
                                     at::ScalarType dtype = at::kFloat) const;

 private:
  struct Bucket {
    BucketPlan plan;
    at::Tensor masters, gradients;          // [plan.num_elements] float32
    at::Tensor own_masters, own_gradients;  // this rank's part; replicated: views of the above
    size_t num_incomplete = 0;              // replicated: parameters that more will be added to
    // Sharded:
    bool has_masters = false, has_gradients = false;  // whole
    std::optional<comm::Pending> gathering;
  };
  // Gradients of a sharded bucket on their way to their owners.
  struct Sum {
    size_t bucket;
    at::Tensor part;
    comm::Pending under_way;
  };

  size_t rank() const {
    return collective_ == nullptr ? 0 : static_cast<size_t>(collective_->rank());
  }
  at::Tensor OwnPart(const at::Tensor& of_bucket) const;
  std::vector<at::Tensor> OwnOf(at::Tensor Bucket::*parts, bool gradients) const;
  int64_t HeldBytes(bool gradients) const;
  void MoveInto(size_t bucket, bool trainable);
  void BeginNext();
  void ParametersAreComplete(size_t stage);
  void BeginGather(size_t bucket);
  void Gather(size_t bucket);
  void Release(size_t bucket);
  void FinishSum();
  void SetStored(Bucket& bucket, bool masters, bool gradients);

  const std::vector<NamedParameter>* const parameters_;
  comm::Collective* const collective_;  // of parameters; null when alone
  comm::Collective* const values_;      // of host tensors
  const bool sharded_;
  std::vector<Bucket> buckets_;
  std::vector<size_t> bucket_of_;               // [parameter]
  std::vector<size_t> bucket_of_stage_;         // sharded
  std::vector<std::vector<size_t>> completed_;  // [stage] parameters that no later stage adds to
  std::vector<std::vector<Slice>> slices_;      // [rank], by parameter, then by place
  bool last_pass_ = false;
  std::vector<comm::Pending> under_way_;  // replicated: sums of the first buckets
  std::optional<Sum> sum_;                // sharded
  absl::Status failed_;
  int64_t gathered_bytes_ = 0, peak_gathered_bytes_ = 0;
};

}  // namespace tandem::trainer
