// ParameterBuckets: the parameters and gradients of ranks that train together, in flat buckets that
// collectives work on in place. Used by train_step.cc.
//
// Each rank owns an equal part of every bucket and updates it (ZeRO-1): gradients are summed to the
// rank that owns them (reduce-scatter), new masters go to all (all-gather). All ranks get the same
// masters, bit for bit: each is made once, by its owner.
//
//   replicated  every rank holds all masters and gradients. The sum of a bucket begins when the
//               last gradient of it is written by the last row that this rank has in an update,
//               while the backward pass goes on.
//   sharded     a rank holds its parts only (ZeRO-3, as FSDP does). A bucket is what a stage of the
//               model needs: it is gathered when a pass comes to the stage, the next one while the
//               stage is computed, and let go after it; its gradients are summed right after a
//               backward stage. All ranks make the same passes (Policy::Accompany).
//
// Operations begin in one order on all ranks, whatever their rows. Use from one thread at a time.
// Memory: replicated, what masters and gradients had before; sharded, that divided by the ranks,
// and at most two whole buckets of masters and two of gradients. Operations under way hold what
// c10d copies. All of it lies where the masters lie when this is made.
#ifndef TANDEM_TRAINER_OPTIMIZER_PARAMETER_BUCKETS_H_
#define TANDEM_TRAINER_OPTIMIZER_PARAMETER_BUCKETS_H_

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
  // Masters without memory get it. With several ranks: masters move into buckets, gradients
  // (of masters that require them) become zeros that lie alike, and both keep this storage;
  // sharded, it is there only while a pass needs it. To be made before the first pass. Alone:
  // nothing is moved, and nothing is ever sent. `stages`: of a backward pass, the parameters each
  // one uses. `parameters` and the collectives must outlive this object.
  ParameterBuckets(const std::vector<NamedParameter>* parameters,
                   const std::vector<std::vector<size_t>>& stages,
                   const RankCollectives& collectives, const BucketOptions& options);

  // What this rank updates: by parameter, then by place. Alone: every parameter whole.
  const std::vector<Slice>& own_slices() const { return slices_[rank()]; }
  // The slices' masters and gradients, [num_elements] each, where they are held for good.
  std::vector<at::Tensor> OwnMasters() const;
  std::vector<at::Tensor> OwnGradients() const;

  bool sharded() const { return sharded_; }
  // Masters and gradients that are held here for good, in bytes.
  int64_t master_bytes() const { return HeldBytes(/*gradients=*/false); }
  int64_t gradient_bytes() const { return HeldBytes(/*gradients=*/true); }
  // Whole masters and gradients of sharded buckets that were there at the same time, at most.
  int64_t peak_gathered_bytes() const { return peak_gathered_bytes_; }

  // Of the methods below all ranks call the same in the same order, but for EndStage of replicated
  // ones. Errors: those of the collective.

  // A pass comes to a stage, and leaves it. Sharded, the first failure stays in failure(), and the
  // pass goes on with zeros for masters: to be asked for after every pass.
  void BeginStage(Pass pass, size_t stage);
  void EndStage(Pass pass, size_t stage);
  const absl::Status& failure() const { return failed_; }

  // The next backward pass is the last one before FinishGradients on this rank. Replicated, its
  // stages begin the sums of buckets that are complete. Not every rank need have one.
  void ExpectLastPass() { last_pass_ = true; }

  // Waits for the sums of all gradients, and begins those that did not begin yet: gradients in
  // own_slices() are now sums over the ranks, others zeros or not there. After a backward pass or
  // without one.
  absl::Status FinishGradients();

  // Own masters changed: every one becomes its owner's, or is gathered again when it is needed.
  absl::Status ShareMasters();

  // `whole`, the parameter's elements in float32 on any device, becomes its master, as far as it is
  // held here. To be called with the same on all ranks; replicated, ShareMasters need not follow.
  void Load(size_t parameter, const at::Tensor& whole);

  // A tensor that lies like `parameter` and of which each rank has own_slices(): `own`, in that
  // order, each [num_elements] of one dtype, on any device. On the host: whole on rank 0,
  // [master.numel()]; undefined elsewhere. Sends one slice at a time.
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

#endif  // TANDEM_TRAINER_OPTIMIZER_PARAMETER_BUCKETS_H_
