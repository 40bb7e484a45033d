// TrainStep: one experience batch in, new weights out: arrows 4 to 8 in order (trainer/README.md).
// Owns the policy, its optimizer and, if there is one, the frozen reference policy. Its header is
// free of LibTorch and protobuf: the trainer's loop includes it.
//
//   groups -> PackBatch -> [proximal pass] -> per microbatch: target log-probs, correction, loss,
//   backward -> per minibatch: optimizer update
//
// The proximal policy is the target policy before the first update. Of the first minibatch its
// log-probs are therefore the detached target ones, and no second pass is made; those of later
// minibatches are scored once, before the first update, in every correction mode. KL in the reward
// and batch_normalise need all of them then. What the report calls proximal is so of the weights
// that the step starts from.
//
// An update whose minibatch has no kept token, or no finite loss or gradient, is not made: weights,
// moments and the optimizer's update counter (bias correction, learning rate) stay as they were.
//
// Several ranks make a step together: each computes its share of the rows, and ends with the same
// report and the same weights, bit for bit. The result is that of one rank, to rounding.
//
// Use from one thread. Memory: masters and gradients in fp32, and two moments divided by the number
// of ranks; another copy of the weights for the reference, and for bf16 its cast; activations of
// one microbatch. All of that lies on the device; batches, log-probs and what the methods give and
// take are on the host. With sharded parameters all of these but the activations are divided by the
// ranks, and two layers are there whole.
#ifndef TANDEM_TRAINER_TRAIN_STEP_H_
#define TANDEM_TRAINER_TRAIN_STEP_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/weight_version.h"
#include "common/model/compute_dtype.h"
#include "common/model/device.h"
#include "common/model/model_config.h"
#include "common/model/numerics.h"
#include "common/model/tensor_source.h"
#include "common/weights/host_tensor.h"
#include "trainer/experience/advantages.h"
#include "trainer/experience/experience_batch.h"
#include "trainer/experience/group_logprobs.h"
#include "trainer/metrics/step_report.h"
#include "trainer/optimizer/bucket_plan.h"
#include "trainer/ranks/rank_collectives.h"
#include "trainer/train_step_options.h"
#include "trainer/weight_push/weight_cast.h"

namespace tandem::trainer {

struct TrainStepSetup {
  ModelConfig config;
  ComputeDType dtype = ComputeDType::kFp32;
  Numerics numerics = Numerics::kFast;
  Device device = Device::kCpu;           // of kCuda this thread's current one
  Rounding rounding = Rounding::kDither;  // of pushes: what kExact computes with
  double temperature = 1;           // of the sampler: all log-probs are of the tempered policy
  AdvantageOptions advantage;       // of arrow 3, used again by kl_place reward
  std::vector<HostTensor> weights;  // ModelTensors order; copied
  // Weights of the frozen reference policy; empty: none. KL is measured when it is there, and
  // trained on when options.loss.kl_coefficient > 0.
  std::vector<HostTensor> reference_weights;
  // The ranks that make the step together, each with the same setup, options and groups; null:
  // alone. Must outlive the step.
  RankCollectives collectives;
  BucketOptions buckets;
  bool checkpoint_activations = false;  // Policy::CheckpointActivations
};

class TrainStep {
 public:
  //   INVALID_ARGUMENT  CheckOptions; kl_coefficient without a reference; weights that do not fit
  //   INTERNAL          the device has no memory for them, or failed
  static absl::StatusOr<std::unique_ptr<TrainStep>> Create(const TrainStepSetup& setup,
                                                           const TrainStepOptions& options);
  ~TrainStep();
  TrainStep(const TrainStep&) = delete;
  TrainStep& operator=(const TrainStep&) = delete;

  // Trains on `groups`. An update whose loss or gradient is not finite, or that has no token left,
  // is skipped and counted; when all of them were, skip_reason says why and the weights are as they
  // were. After an error from the kernels (INTERNAL) the weights are unknown: end the process.
  //   INVALID_ARGUMENT, FAILED_PRECONDITION  of PackBatch: nothing was changed
  //   INTERNAL                               a kernel failed
  //   UNAVAILABLE                            another rank is lost, as comm::RankReducer's collective says
  // `version` is that of the weights as they are, for how far tokens lag behind.
  absl::StatusOr<StepReport> Run(std::span<const experience::v1::ScoredGroup> groups,
                                 WeightVersion version = {});

  // All ranks call each of the methods below in the same order, but for OwnMasters, HeldMasters and
  // the numbers; UNAVAILABLE where another rank is lost.

  // Log-probs of the completions that are not masked, at the temperature of the trained policy and
  // over the supports they carry, under the live weights. Nothing changes.
  //   INVALID_ARGUMENT, FAILED_PRECONDITION  of PackBatch
  //   INTERNAL                               a kernel failed
  absl::StatusOr<GroupLogprobs> Score(std::span<const experience::v1::ScoredGroup> groups);
  // The same under other masters, as OwnMasters gave them (F32, each rank its own); `rounding` is
  // that of kExact's cast.
  absl::StatusOr<GroupLogprobs> ScoreUnder(std::span<const HostTensor> own_masters,
                                           Rounding rounding,
                                           std::span<const experience::v1::ScoredGroup> groups);

  // ||masters - tensors||, over all elements; ModelTensors order, any float dtype.
  absl::StatusOr<double> DistanceFrom(const std::vector<HostTensor>& tensors) const;

  // F32 masters until the next Run (on the CPU views that change with it, from a device copies):
  // this rank's slices of them, and all that it holds (the same when sharded, else whole, in
  // ModelTensors order). INTERNAL: the device failed.
  absl::StatusOr<std::vector<TensorPart>> OwnMasters() const;
  absl::StatusOr<std::vector<TensorPart>> HeldMasters() const;
  // OwnMasters in memory of their own, for good.
  absl::StatusOr<std::vector<TensorPart>> CopyOwnMasters() const;
  bool sharded() const;

  // What a push sends of the masters, made on their device from what they are then; null on the CPU
  // and when sharded.
  std::shared_ptr<BucketSource> DeviceBuckets(DType dtype, Rounding rounding) const;

  // Whole tensors of `dtype`, F32 or BF16, of which each rank has slices: `own`, named and in the
  // order of OwnMasters. All ranks read the same ones in the same order; what is read is whole on
  // rank 0 and without bytes elsewhere. The step must outlive them.
  std::vector<TensorSource> Gathered(std::vector<HostTensor> own, DType dtype) const;

  // F32 masters in ModelTensors order, as they are when they are read, until the next Run: Gathered
  // when sharded, else whole on every rank.
  std::vector<TensorSource> Masters() const;
  // The optimizer's moments, in F32, likewise, gathered.
  std::vector<TensorSource> OptimizerState() const;

  // Each value becomes its sum over the ranks.
  absl::Status SumValues(std::span<double> values);

  int64_t num_updates() const;
  int64_t num_parameters() const;

  // Takes weights and optimizer state back: tensors are read one at a time, masters first, in
  // ModelTensors order, then moments in the order given, each whole on every rank. Whatever number
  // of ranks they come from. The reference stays as it is.
  //   INVALID_ARGUMENT  a tensor is missing or of another shape or dtype (named)
  //   any code of read  what is held is unknown
  absl::Status Restore(const std::vector<TensorSource>& masters,
                       const std::vector<TensorSource>& optimizer_state, int64_t num_updates);

  // Threads of the kernels, for the whole process; 0: one per core.
  static void UseThreads(int64_t num_threads);

 private:
  struct Impl;
  explicit TrainStep(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_TRAIN_STEP_H_
