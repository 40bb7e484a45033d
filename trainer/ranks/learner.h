// Learner: stages 4 to 8 as the trainer's loop sees them, free of LibTorch. PolicyLearner
// (policy_learner.h) implements it over Policy and TrainStep, RemoteLearner (remote_learner.h) over
// all ranks, and tests of the loop use a fake.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/weight_version.h"
#include "common/weights/host_tensor.h"
#include "proto/experience.pb.h"
#include "trainer/experience/group_logprobs.h"
#include "trainer/ranks/kept_masters.h"
#include "trainer/weight_push/weight_cast.h"

namespace tandem::trainer {

struct LearnerReport {
  std::string skip_reason;  // not empty: no finite loss or gradient, and the weights did not change
  // Named as in metrics.jsonl: drift/, correction/, loss/, kl_reference/, optimizer/, time/.
  std::vector<std::pair<std::string, double>> metrics;
  std::vector<std::pair<std::string, std::vector<int64_t>>> histograms;
  std::vector<std::pair<std::string, std::string>> documents;  // name and JSON
  // Group id -> per completion of the group, in order.
  std::map<int64_t, std::vector<std::vector<float>>> proximal_logprobs;
  // The advantages that the loss used, laid out alike: per token, and after KL was taken off the
  // reward. A learner that changes no advantages may leave it empty.
  std::map<int64_t, std::vector<std::vector<float>>> advantages;
  int64_t num_tokens = 0;  // trained
};

// Everything that stages 4 to 8 need to continue a run bit for bit.
struct LearnerState {
  std::vector<TensorSource> weights;    // F32 masters, Hugging Face names
  std::vector<TensorSource> optimizer;  // moments in F32, by names of their own
  int64_t num_updates = 0;
  std::map<std::string, double> numbers = {};  // TrainStep::numbers
  // Where `weights` are adapters of the model: adapter_config.json of their PEFT directory.
  std::string adapter_config = {};
};

// The weights under which completions are scored: the live masters or kept ones, and with `as_bf16`
// rounded to bf16 as a push sends them to a server.
struct ScoredWeights {
  const KeptMasters* masters = nullptr;  // null: the live ones
  bool as_bf16 = false;
  Rounding rounding = Rounding::kNearest;  // of the cast of those weights
};

class Learner {
 public:
  virtual ~Learner() = default;

  // Stages 4 to 8 on `groups`. `version` is that of the weights before the step. After an error the
  // weights are unknown, and the process must end; a step that was skipped is no error.
  virtual absl::StatusOr<LearnerReport> Train(
      const std::vector<experience::v1::ScoredGroup>& groups, WeightVersion version) = 0;

  // With several ranks all of them work on each of the methods below, as they do on Train, and a
  // lost rank fails it as it fails Train. Tensors are returned as TensorSources: each is read when
  // it is needed, one at a time and from any thread. Ranks that hold parts of a tensor gather it
  // then, and keep no copy.

  // Log-probs of the completions of `groups` that are not masked, computed as Train computes the
  // proximal ones. Changes nothing. Errors: those of PackBatch; INTERNAL: a kernel failed.
  virtual absl::StatusOr<GroupLogprobs> Score(
      const std::vector<experience::v1::ScoredGroup>& groups, const ScoredWeights& weights) = 0;

  // ||masters - start||, where start is the model directory's weights, also after Restore.
  virtual absl::StatusOr<double> DistanceFromStart() const = 0;

  // The masters in the dtype of the rollout servers, for a push.
  virtual absl::StatusOr<CastWeights> Cast(DType dtype) = 0;

  // A copy of the masters as they are now, of which each rank holds a part.
  virtual absl::StatusOr<KeptMasters> Keep() = 0;

  // The live state, not a copy: to be read before the next Train.
  virtual absl::StatusOr<LearnerState> Save() = 0;

  // Takes masters and optimizer state back, reading one tensor at a time.
  //   INVALID_ARGUMENT  a tensor is missing or of another shape
  virtual absl::Status Restore(const LearnerState& state) = 0;

  // CombinedDigest of the model directory's tensors, also after Restore. They are the weights of
  // the reference policy.
  virtual std::string StartDigest() const = 0;

  virtual int64_t num_parameters() const = 0;
  virtual std::string library_version() const = 0;  // of LibTorch
  // The hardware that its kernels are chosen for, spelled as a server spells its own: "avx512",
  // "cuda NVIDIA H100".
  virtual std::string kernels() const = 0;
};

}  // namespace tandem::trainer
