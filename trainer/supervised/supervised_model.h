// SupervisedModel: a language model, or a trunk with a linear head of K scores, that is trained on
// an objective (supervised_objective.h). It packs the examples of a batch into rows, spreads the
// rows over the ranks, and makes one AdamW update. The loop is supervised_run.h. This header is
// free of LibTorch.
//
// All ranks make the same calls in the same order, and end with the same bits. The result is that
// of one rank, to rounding. Use from one thread. Memory: masters and gradients in fp32, and two
// moments divided by the number of ranks; a cast to bf16; the activations of one row. With sharded
// parameters all but the activations is divided by the number of ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "common/model/numerics.h"
#include "common/weights/host_tensor.h"
#include "trainer/optimizer/bucket_plan.h"
#include "trainer/optimizer/optimizer_options.h"
#include "trainer/ranks/rank_collectives.h"
#include "trainer/supervised/supervised_objective.h"

namespace tandem::trainer {

struct SupervisedModelSetup {
  ModelConfig config;
  std::vector<HostTensor> weights;  // ModelTensors order, with heads without lm_head; copied
  int64_t num_heads = 0;            // 0: a language model
  std::optional<HostTensor> head;   // score.weight [K, E] to start from; none: zeros
  bool trainable = true;            // false: scores only, without gradients and moments
  OptimizerOptions optimizer;
  int64_t microbatch_tokens = 4096;
  ComputeDType dtype = ComputeDType::kFp32;
  Numerics numerics = Numerics::kFast;
  Device device = Device::kCpu;  // with kCuda, this thread's current device
  bool checkpoint_activations = false;
  RankCollectives collectives;  // must outlive the model
  bool shard_parameters = false;
};

// The numbers of one update or of an evaluation, the same on all ranks.
struct SupervisedReport {
  double loss = 0;
  std::vector<double> metrics;  // parallel to SupervisedObjective::MetricNames
  int64_t num_tokens = 0;       // of the examples, each with its prompt once
  // Of an update:
  double grad_norm = 0;  // before clipping
  double learning_rate = 0;
  bool skipped = false;  // no finite loss or gradient: nothing was changed
};

class SupervisedModel {
 public:
  //   INVALID_ARGUMENT  weights that do not fit; a head of another shape
  //   INTERNAL          the device has no memory for them;  others: of PlacedPolicy::Create
  static absl::StatusOr<std::unique_ptr<SupervisedModel>> Create(const SupervisedModelSetup& setup);
  ~SupervisedModel();
  SupervisedModel(const SupervisedModel&) = delete;

  // Errors of the methods below: INVALID_ARGUMENT of PackExamples; INTERNAL: a kernel failed, and
  // the weights are unknown; UNAVAILABLE: another rank is lost.

  // One optimizer update on the loss of a batch.
  absl::StatusOr<SupervisedReport> Train(SupervisedObjective& objective,
                                         std::span<const int64_t> examples);
  // The loss and the metrics of examples, as one batch. Nothing changes.
  absl::StatusOr<SupervisedReport> Evaluate(SupervisedObjective& objective,
                                            std::span<const int64_t> examples);

  // The log-probs of the tokens of all completions of `count` examples, one after the other, on
  // every rank. `progress` is called with the number of examples that are done.
  absl::StatusOr<std::vector<float>> Logprobs(
      int64_t count, const std::function<GroupTokens(int64_t)>& tokens_of,
      const std::function<void(int64_t)>& progress = nullptr);
  // The scores of the heads, [places, K] of each of the objective's examples, one after the other,
  // on every rank.
  absl::StatusOr<std::vector<float>> HeadScores(const SupervisedObjective& objective);

  // F32 masters in ModelTensors order, then the head's; and the optimizer's moments. All ranks read
  // the same ones in the same order, before the next update. They are whole on rank 0. This object
  // must outlive them.
  std::vector<TensorSource> Weights() const;
  std::vector<TensorSource> OptimizerState() const;
  int64_t num_updates() const;
  // Whether every element of every master is finite; on all ranks.
  absl::StatusOr<bool> WeightsAreFinite();
  // Takes both back, each tensor whole on every rank.
  //   INVALID_ARGUMENT  a tensor is missing or of another shape (named);  any code of read
  absl::Status Restore(const std::vector<TensorSource>& weights,
                       const std::vector<TensorSource>& optimizer_state, int64_t num_updates);

  int rank() const;
  int num_ranks() const;
  absl::StatusOr<double> MaxOverRanks(double own);  // as below

  // Sets the number of kernel threads of the whole process; 0: one per core.
  static void UseThreads(int64_t num_threads);

 private:
  struct Impl;
  explicit SupervisedModel(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The largest of the numbers that the ranks have. UNAVAILABLE: a rank is lost.
absl::StatusOr<double> MaxOverRanks(const RankCollectives& collectives, double own);

}  // namespace tandem::trainer
