// Learner: what the trainer's loop needs of arrows 4 to 8, free of LibTorch. PolicyLearner
// (policy_learner.h) implements it over Policy and TrainStep; tests of the loop use a fake.
#ifndef TANDEM_TRAINER_RANKS_LEARNER_H_
#define TANDEM_TRAINER_RANKS_LEARNER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/weight_version.h"
#include "common/model/tensor_source.h"
#include "common/weights/host_tensor.h"
#include "proto/experience.pb.h"
#include "trainer/experience/group_logprobs.h"
#include "trainer/ranks/kept_masters.h"
#include "trainer/weight_push/weight_cast.h"

namespace tandem::trainer {

struct LearnerReport {
  std::string skip_reason;  // not empty: no finite loss or gradient; weights are as they were
  // Named as in metrics.jsonl: drift/, correction/, loss/, kl_reference/, optimizer/, time/.
  std::vector<std::pair<std::string, double>> metrics;
  std::vector<std::pair<std::string, std::vector<int64_t>>> histograms;
  std::vector<std::pair<std::string, std::string>> documents;  // name and JSON
  // Group id -> per completion of the group, in order.
  std::map<int64_t, std::vector<std::vector<float>>> proximal_logprobs;
  // The same of the advantages that the loss had, per token and after a charge for KL in the
  // reward; a learner that changes none may leave it empty.
  std::map<int64_t, std::vector<std::vector<float>>> advantages;
  int64_t num_tokens = 0;  // trained
};

// Everything arrows 4 to 8 must find again to go on bitwise.
struct LearnerState {
  std::vector<TensorSource> weights;    // F32 masters, Hugging Face names
  std::vector<TensorSource> optimizer;  // moments in F32, by names of their own
  int64_t num_updates = 0;
};

// The weights that a score is under: the live masters, or those kept before; in bf16 as a push
// sends them to a server when `as_bf16` is set.
struct ScoredWeights {
  const KeptMasters* masters = nullptr;
  bool as_bf16 = false;
  Rounding rounding = Rounding::kNearest;  // of that version's cast
};

class Learner {
 public:
  virtual ~Learner() = default;

  // Arrows 4 to 8. After an error that is not skip_reason the weights are unknown: end the process.
  virtual absl::StatusOr<LearnerReport> Train(
      const std::vector<experience::v1::ScoredGroup>& groups, WeightVersion version) = 0;

  // With several ranks all of them work on each of the methods below, as on Train, and errors of
  // that are those of Train. What they give is read (TensorSource) one tensor at a time, from any
  // thread: ranks that hold parts of it gather them then, and keep no copy.

  // Log-probs of the completions of `groups` that are not masked, as Train makes the proximal ones.
  // Changes nothing. Errors: those of packing; INTERNAL.
  virtual absl::StatusOr<GroupLogprobs> Score(
      const std::vector<experience::v1::ScoredGroup>& groups, const ScoredWeights& weights) = 0;

  // ||masters - those the run started from||: the model directory's, also after Restore.
  virtual absl::StatusOr<double> DistanceFromStart() const = 0;

  // The masters as servers of `dtype` get them.
  virtual absl::StatusOr<CastWeights> Cast(DType dtype) = 0;

  // The masters as they are now, for later: a copy, shared out over the ranks.
  virtual absl::StatusOr<KeptMasters> Keep() = 0;

  // Live: to be read before the next Train.
  virtual absl::StatusOr<LearnerState> Save() = 0;

  // Reads one tensor at a time.
  //   INVALID_ARGUMENT  a tensor is missing or of another shape
  virtual absl::Status Restore(const LearnerState& state) = 0;

  // CombinedDigest of the tensors that the run started from: the model directory's, also after
  // Restore. They are the reference policy.
  virtual std::string StartDigest() const = 0;

  virtual int64_t num_parameters() const = 0;
  virtual std::string library_version() const = 0;  // of LibTorch
  // What its kernels are made for, as a server names its own: "avx512", "cuda NVIDIA H100".
  virtual std::string kernels() const = 0;
};

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_RANKS_LEARNER_H_
