// TrainStep: one experience batch in, new weights out: stages 4 to 8 in order (docs/dev/tour.md).
// Owns the policy, its optimizer and, if there is one, the frozen reference policy. Its header is
// free of LibTorch and protobuf, because the trainer's loop includes it.
//
//   groups -> PackBatch -> [proximal pass] -> per microbatch: target log-probs, correction, loss,
//   backward -> per minibatch: optimizer update
//
// The proximal policy is the target policy before the first update. For the first minibatch its
// log-probs are therefore the detached target ones, and no second pass is made. Those of later
// minibatches are scored once, before the first update, in every correction mode. KL in the reward
// and batch_normalise need those of all minibatches then. All that the report calls proximal
// belongs to the weights that the step starts from.
//
// An update is not made when its minibatch has no kept token, or no finite loss or gradient.
// Weights, moments and the optimizer's count of updates (bias correction, learning rate) stay as
// they were.
//
// Several ranks make a step together. Each computes its share of the rows, and all end with the
// same report and the same weights, bit for bit. The result is that of one rank, to rounding.
//
// Use from one thread. Memory: masters and gradients in fp32, and two moments divided by the number
// of ranks; another copy of the weights for the reference, and one for the cast to bf16; the
// activations of one microbatch. All of that is on the device; batches, log-probs and the tensors
// that methods take and return are on the host. With sharded parameters all but the activations is
// divided by the number of ranks, and two layers are held whole.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/weight_version.h"
#include "common/weights/host_tensor.h"
#include "trainer/experience/experience_batch.h"
#include "trainer/experience/group_logprobs.h"
#include "trainer/metrics/step_report.h"
#include "trainer/optimizer/held_adapters.h"
#include "trainer/step/train_step_setup.h"
#include "trainer/train_step_options.h"
#include "trainer/weight_push/weight_cast.h"

namespace tandem::trainer {

class TrainStep {
 public:
  //   INVALID_ARGUMENT  CheckOptions; a loss that needs a reference without one; weights that do
  //                     not fit
  //   INTERNAL          the device has no memory for them, or failed
  static absl::StatusOr<std::unique_ptr<TrainStep>> Create(const TrainStepSetup& setup,
                                                           const TrainStepOptions& options);
  ~TrainStep();
  TrainStep(const TrainStep&) = delete;
  TrainStep& operator=(const TrainStep&) = delete;

  // Trains on `groups`. An update whose loss or gradient is not finite, or that has no token left,
  // is skipped and counted; when all of them were, skip_reason says why and the weights did not
  // change. After an error from the kernels (INTERNAL) the weights are unknown, and the process
  // must end. `version` is that of the weights before the step, from which token lags are counted.
  //   INVALID_ARGUMENT, FAILED_PRECONDITION  of PackBatch, and with loss.kind preference of
  //                                          CheckPairs: nothing was changed
  //   INTERNAL                               a kernel failed
  //   UNAVAILABLE                            another rank is lost (message of the collective)
  absl::StatusOr<StepReport> Run(std::span<const experience::v1::ScoredGroup> groups,
                                 WeightVersion version = {});

  // All ranks call the methods below in the same order, except OwnMasters, HeldMasters and the
  // getters of numbers, which a rank may call alone. UNAVAILABLE where another rank is lost.

  // Log-probs of the completions that are not masked, at the temperature of the trained policy and
  // over the supports they carry, under the live weights. Nothing changes.
  //   INVALID_ARGUMENT, FAILED_PRECONDITION  of PackBatch
  //   INTERNAL                               a kernel failed
  absl::StatusOr<GroupLogprobs> Score(std::span<const experience::v1::ScoredGroup> groups);
  // The same under other masters, which are F32 and as OwnMasters returned them on each rank.
  // `rounding` is that of kExact's cast.
  absl::StatusOr<GroupLogprobs> ScoreUnder(std::span<const HostTensor> own_masters,
                                           Rounding rounding,
                                           std::span<const experience::v1::ScoredGroup> groups);

  // The same of a model without adapters: whole tensors, ModelTensors order, F32.
  absl::StatusOr<GroupLogprobs> ScoreModel(const std::vector<HostTensor>& tensors,
                                           Rounding rounding,
                                           std::span<const experience::v1::ScoredGroup> groups);

  // ||masters - tensors||, over all elements; ModelTensors order, any float dtype. With adapters:
  // ||s B A||, how far they moved the model from its base.
  absl::StatusOr<double> DistanceFrom(const std::vector<HostTensor>& tensors) const;

  // F32 masters, to be read before the next Run: on the CPU they are views that change with it,
  // from a device they are copies. OwnMasters are those of this rank's slices; HeldMasters are all
  // that this rank holds, which is the same when sharded, else every tensor whole, in ModelTensors
  // order. INTERNAL: the device failed.
  absl::StatusOr<std::vector<TensorPart>> OwnMasters() const;
  absl::StatusOr<std::vector<TensorPart>> HeldMasters() const;
  bool has_adapters() const;
  // With adapters: those of PlacedPolicy.
  absl::StatusOr<std::vector<TensorPart>> MergedMasters(DType dtype,
                                                        std::span<const HostTensor> own = {});
  absl::StatusOr<HeldAdapters> Adapters(const HeldAdapters* before = nullptr);
  std::vector<TensorSource> MergedSources(const std::vector<HostTensor>& adapters,
                                          DType dtype) const;
  // OwnMasters as copies, which nothing changes.
  absl::StatusOr<std::vector<TensorPart>> CopyOwnMasters() const;
  bool sharded() const;

  // The bytes of a push, cast on the device from the masters at the time of reading; null on the
  // CPU and when sharded.
  std::shared_ptr<BucketSource> DeviceBuckets(DType dtype, Rounding rounding) const;

  // Whole tensors of `dtype`, F32 or BF16, of which each rank has slices: `own`, named and in the
  // order of OwnMasters. All ranks read the same ones in the same order; what is read is whole on
  // rank 0 and without bytes elsewhere. The step must outlive them.
  std::vector<TensorSource> Gathered(std::vector<HostTensor> own, DType dtype) const;

  // F32 masters in ModelTensors order, as they are when they are read, until the next Run: Gathered
  // when sharded, else whole on every rank.
  std::vector<TensorSource> Masters() const;
  // The optimizer's moments, in F32, likewise, gathered; then what the critic needs to go on, with
  // names that begin with "critic.", and a reference policy that is not frozen ("reference.").
  std::vector<TensorSource> OptimizerState() const;
  // What else it needs to go on, by name: coefficients that a controller moves, and counts.
  std::map<std::string, double> numbers() const;

  // Each value becomes its sum over the ranks.
  absl::Status SumValues(std::span<double> values);

  int64_t num_updates() const;
  int64_t num_parameters() const;

  // Takes weights and optimizer state back. Tensors are read one at a time, each whole on every
  // rank: first masters, in ModelTensors order, then moments in the order given. The number of
  // ranks that saved them does not matter. A frozen reference stays as it is.
  //   INVALID_ARGUMENT  a tensor or number is missing, or of another shape or dtype (named)
  //   any code of read  the weights are unknown
  absl::Status Restore(const std::vector<TensorSource>& masters,
                       const std::vector<TensorSource>& optimizer_state, int64_t num_updates,
                       const std::map<std::string, double>& numbers = {});

  // Sets the number of kernel threads of the whole process; 0: one per core.
  static void UseThreads(int64_t num_threads);

 private:
  struct Impl;
  explicit TrainStep(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::trainer
