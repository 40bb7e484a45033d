// PlacedPolicy: a policy whose parameters lie in buckets over the ranks that train together: the
// passes, and masters as they are held here, given out and taken in. Used by train_step.cc.
//
// Parameters, their gradients and all that a pass makes lie on one device; what is given out and
// taken in lies on the host.
//
// All ranks make the same passes in the same order when the parameters are sharded: Accompany where
// one has no row. Use from one thread at a time.
#ifndef TANDEM_TRAINER_OPTIMIZER_PLACED_POLICY_H_
#define TANDEM_TRAINER_OPTIMIZER_PLACED_POLICY_H_

#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/compute_dtype.h"
#include "common/model/device.h"
#include "common/model/model_config.h"
#include "common/model/numerics.h"
#include "common/model/tensor_source.h"
#include "trainer/optimizer/parameter_buckets.h"
#include "trainer/policy/policy.h"
#include "trainer/ranks/rank_collectives.h"
#include "trainer/weight_push/weight_cast.h"

namespace tandem::trainer {

struct PlacedPolicyOptions {
  ComputeDType dtype = ComputeDType::kFp32;
  bool trainable = true;  // false: no gradients are held
  Numerics numerics = Numerics::kFast;
  Device device = Device::kCpu;
  RankCollectives collectives;
  BucketOptions buckets;
};

class PlacedPolicy {
 public:
  // Masters are to be filled before the first pass. The collectives must outlive this object.
  // Errors: those of Policy::CreateUnfilled; INTERNAL: the device has no memory for the parameters.
  static absl::StatusOr<std::unique_ptr<PlacedPolicy>> Create(const ModelConfig& config,
                                                              const PlacedPolicyOptions& options);

  Policy& policy() { return *policy_; }
  ParameterBuckets& buckets() { return buckets_; }
  const ParameterBuckets& buckets() const { return buckets_; }

  // As Policy::Score; errors of gathering parameters too. After a backward pass ask
  // buckets().failure().
  absl::StatusOr<TokenScores> Score(const PackedRow& row, double temperature, bool with_gradient);
  // Where another rank scores a row, or goes back over it. Nothing with parameters that are not
  // sharded.
  absl::Status Accompany(Pass pass);

  // Whole tensors in ModelTensors order, of any float dtype, read one at a time, the same on all
  // ranks.
  //   INVALID_ARGUMENT  not of a float dtype;  any code of read
  absl::Status Fill(std::span<const TensorSource> tensors);
  // The same of saved masters: F32, found by name, read in ModelTensors order.
  //   INVALID_ARGUMENT  one is missing or of another shape or dtype (named): nothing was changed
  absl::Status Restore(std::span<const TensorSource> saved);
  // What OwnMasters gave, here or of another policy of the ranks; each rank its own.
  absl::Status FillOwn(std::span<const HostTensor> own);

  // The masters that are this rank's, F32: of its slices, by parameter and place. On the CPU views,
  // which change with the masters; from another device copies, made here.
  //   INTERNAL  the device failed
  absl::StatusOr<std::vector<TensorPart>> OwnMasters() const;
  // Of all that are held here: the same when sharded, else every tensor whole.
  absl::StatusOr<std::vector<TensorPart>> HeldMasters() const;
  // OwnMasters in memory of their own on every device.
  absl::StatusOr<std::vector<TensorPart>> CopyOwnMasters() const;

  // The masters in ModelTensors order, F32, as they are when they are read: Gathered when sharded,
  // else whole on every rank. From another device than the CPU one tensor at a time is on the host.
  // This object must outlive them.
  std::vector<TensorSource> Masters() const;

  // ||masters - tensors||^2 over the slices of this rank; ModelTensors order, any float dtype.
  //   INVALID_ARGUMENT  not as many tensors, or of no float dtype;  INTERNAL  the device failed
  absl::StatusOr<double> SquaredDistance(std::span<const HostTensor> tensors) const;

  // Whole tensors of `dtype`, F32 or BF16, of which each rank has its slices: `own`, named and in
  // the order of OwnMasters. Reading is for all ranks, in the same order: whole on rank 0, without
  // bytes elsewhere. This object must outlive them.
  std::vector<TensorSource> Gathered(std::vector<HostTensor> own, DType dtype) const;

 private:
  PlacedPolicy(std::unique_ptr<Policy> policy, const RankCollectives& collectives,
               const BucketOptions& options);
  // On rank 0, of what each rank has own_slices(): `own`, on any device.
  absl::StatusOr<HostTensor> Collect(size_t parameter, const TensorSpec& spec,
                                     const std::vector<at::Tensor>& own) const;

  const std::unique_ptr<Policy> policy_;
  ParameterBuckets buckets_;
};

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_OPTIMIZER_PLACED_POLICY_H_
