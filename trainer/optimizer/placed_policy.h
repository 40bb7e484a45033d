// PlacedPolicy: a policy whose parameters lie in buckets over the ranks that train together. It
// makes the passes, and gives out and takes in the masters that this rank holds. Used by
// train_step.cc.
//
// Parameters, gradients and all that a pass computes are on one device; tensors that are given out
// or taken in are on the host. With sharded parameters all ranks make the same passes in the same
// order, and a rank without a row calls RunEmptyPass. Use from one thread at a time.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/lora/lora_shape.h"
#include "common/model/model_config.h"
#include "common/model/numerics.h"
#include "common/model/quantisation_plan.h"
#include "common/weights/host_tensor.h"
#include "trainer/optimizer/held_adapters.h"
#include "trainer/optimizer/optimizer.h"
#include "trainer/optimizer/parameter_buckets.h"
#include "trainer/policy/policy.h"
#include "trainer/ranks/rank_collectives.h"
#include "trainer/weight_push/weight_cast.h"

namespace tandem::trainer {

struct PlacedPolicyOptions {
  ComputeDType dtype = ComputeDType::kFp32;
  bool trainable = true;  // false: no gradients are held
  Numerics numerics = Numerics::kFast;
  QuantisationOptions
      fake_quantise;       // what servers quantise, for the policy's forward to see it too
  LoraOptions lora;        // adapters that are trained in place of the model
  uint64_t lora_seed = 0;  // of what they begin from
  std::vector<HostTensor> lora_start;  // or what they begin from, LoraTensors order
  Device device = Device::kCpu;
  RankCollectives collectives;
  BucketOptions buckets;
};

class PlacedPolicy {
 public:
  // Masters are to be filled before the first pass. The collectives must outlive this object.
  // Errors: those of MakeQuantisationPlan and Policy::CreateUnfilled; INTERNAL: the device has no memory for the parameters.
  static absl::StatusOr<std::unique_ptr<PlacedPolicy>> Create(const ModelConfig& config,
                                                              const PlacedPolicyOptions& options);

  Policy& policy() { return *policy_; }
  ParameterBuckets& buckets() { return buckets_; }
  const ParameterBuckets& buckets() const { return buckets_; }

  // As Policy::Run, with the errors of gathering parameters. A backward pass cannot report an
  // error: ask buckets().failure() after it.
  absl::StatusOr<TokenScores> Run(const PackedRow& row, const PassOptions& options);
  // Takes part in the pass of another rank, where this rank has no row of its own. Does nothing
  // with parameters that are not sharded.
  absl::Status RunEmptyPass(Pass pass);

  // Sets the masters from whole tensors in ModelTensors order, of any float dtype, that are read
  // one at a time and are the same on all ranks. With adapters this is the frozen base, which every
  // rank holds whole, and the adapters become InitialAdapters.
  //   INVALID_ARGUMENT  not of a float dtype;  any code of read
  absl::Status Fill(std::span<const TensorSource> tensors);
  // The same from saved masters: F32, found by name, read in ModelTensors order.
  //   INVALID_ARGUMENT  one is missing or of another shape or dtype (named): nothing was changed
  absl::Status Restore(std::span<const TensorSource> saved);
  // Sets this rank's masters from what OwnMasters returned on this rank, for this or another
  // policy.
  absl::Status FillOwn(std::span<const HostTensor> own);

  // The masters of this rank's slices, F32, by parameter and place. On the CPU they are views,
  // which change with the masters; from another device they are copies.
  //   INTERNAL  the device failed
  absl::StatusOr<std::vector<TensorPart>> OwnMasters() const;
  // With adapters: the model in ModelTensors order with them merged in (MergeLora), whole on every
  // rank, F32, from the base as a server of `dtype` holds it. All ranks call it. With `own`, the
  // adapters are those, as OwnMasters returned them on each rank.
  //   INTERNAL  the device failed;  errors of gathering
  absl::StatusOr<std::vector<TensorPart>> MergedMasters(DType dtype,
                                                        std::span<const HostTensor> own = {});
  // With adapters: the model with others of them merged in, as MergedMasters would have it, each made
  // when it is read. `adapters` as Adapters returned them. This object must outlive the sources.
  std::vector<TensorSource> MergedSources(const std::vector<HostTensor>& adapters,
                                          DType dtype) const;
  // With adapters: all of them, on every rank; `before` are tensors that it returned. All ranks call
  // it. Errors as above.
  absl::StatusOr<HeldAdapters> Adapters(const HeldAdapters* before = nullptr);
  // All masters that this rank holds: those of its slices when sharded, else every tensor whole.
  absl::StatusOr<std::vector<TensorPart>> HeldMasters() const;
  // OwnMasters as copies, whatever the device.
  absl::StatusOr<std::vector<TensorPart>> CopyOwnMasters() const;

  // The masters in ModelTensors order, F32, as they are when they are read: Gathered when sharded,
  // else whole on every rank. From another device than the CPU one tensor at a time is on the host.
  // This object must outlive them.
  std::vector<TensorSource> Masters() const;

  // ||masters - tensors||^2 over the slices of this rank; ModelTensors order, any float dtype.
  //   INVALID_ARGUMENT  not as many tensors, or of no float dtype;  INTERNAL  the device failed
  absl::StatusOr<double> SquaredDistance(std::span<const HostTensor> tensors) const;

  // Whole tensors of `dtype`, F32 or BF16, of which each rank has its slices: `own`, named and in
  // the order of OwnMasters. All ranks read the same tensors in the same order; the tensor is whole
  // on rank 0 and has no bytes elsewhere. This object must outlive them.
  std::vector<TensorSource> Gathered(std::vector<HostTensor> own, DType dtype) const;

 private:
  PlacedPolicy(std::unique_ptr<Policy> policy, const PlacedPolicyOptions& options);
  absl::Status FillBase(std::span<const TensorSource> tensors);
  // The masters of all parameters, whole: those that are there, or where sharded copies.
  absl::StatusOr<std::vector<at::Tensor>> WholeMasters();
  absl::Status FillParameters(std::span<const TensorSource> tensors);
  // Tensors that the slices of this rank's masters become, by place.
  absl::StatusOr<std::vector<TensorPart>> PartsOf(const std::vector<at::Tensor>& slices) const;
  // One source per parameter, which calls `read` with its index and TensorSpec.
  template <typename Read>
  std::vector<TensorSource> Sources(DType dtype, const Read& read) const;
  // ParameterBuckets::Collect as a tensor of `spec`, on rank 0; without bytes elsewhere.
  absl::StatusOr<HostTensor> Collect(size_t parameter, const TensorSpec& spec,
                                     const std::vector<at::Tensor>& own) const;

  const std::unique_ptr<Policy> policy_;
  const uint64_t lora_seed_;
  const std::vector<HostTensor> lora_start_;
  ParameterBuckets buckets_;
};

// The optimizer of this rank's slices of a trainable model, which must outlive it.
//   INTERNAL  the device has no memory for the moments
absl::StatusOr<std::unique_ptr<AdamW>> MakeOptimizer(PlacedPolicy& model,
                                                     const OptimizerOptions& options);

}  // namespace tandem::trainer
