// RecordReplay: a capture's log-probs as the serving engine would have recorded them under a
// hypothesis, token by token under the weights that computed its position. Free of protobuf and
// LibTorch.
//
// Use from one thread. Memory: packed weights of every version in the capture, and a few
// hypotheses'.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/capture/capture.h"
#include "drift_lab/hypotheses/record_hypothesis.h"
#include "drift_lab/recompute/capture_weights.h"
#include "drift_lab/recompute/engine_forward.h"

namespace tandem::drift {

// How to replay, beside the hypothesis.
struct ReplayWay {
  rollout::ScorePath path = rollout::ScorePath::kPrefill;
  bool alone = false;
  bool own_version_only = false;  // every token under its own version, KV and all
};

class RecordReplay {
 public:
  // `model`: directory; its weights are what servers started from. All must outlive this object.
  RecordReplay(const offpolicy::Capture& capture, const CaptureWeights& weights,
               EngineForward& engine, std::string model);

  // [T]; NaN for completions that `wanted` [S] leaves out (empty: all are wanted). Where servers
  // keep KV across an install, a position is computed under the version of the token it predicts,
  // over the KV that positions before left; else every token under its own version alone.
  //   NOT_FOUND, DATA_LOSS  CaptureWeights
  absl::StatusOr<EngineScores> Score(const RecordHypothesis& hypothesis,
                                     const std::vector<bool>& wanted, const ReplayWay& way);

  // Could tokens have KV of more than one version?
  bool CarriesKv() const { return carries_kv_; }

  const ModelConfig& config() const { return engine_.config(); }

  // The versions before every version of the capture that it has the weights of: 1, 2, ...
  std::vector<int64_t> VersionsBefore() const;
  // Those, and OtherWeights::kInitial where it is none of them.
  std::vector<int64_t> Sources() const;
  // Tensors, in ModelTensors order, whose bytes are not those of a version of the capture.
  absl::StatusOr<std::vector<std::string>> TensorsThatDiffer(int64_t versions_before);

  // Called with the number of tokens after every few completions.
  void OnProgress(std::function<void(int64_t)> progress) { progress_ = std::move(progress); }

 private:
  using Key = std::pair<int64_t, std::optional<OtherWeights>>;

  absl::StatusOr<const rollout::StagedWeights*> Staged(int64_t version,
                                                       const std::optional<OtherWeights>& other);
  absl::StatusOr<const std::vector<HostTensor>*> Tensors(int64_t version);
  absl::StatusOr<std::vector<HostTensor>> Mix(int64_t version, const OtherWeights& other);
  absl::StatusOr<EngineScores> ScoreKept(const RecordHypothesis& hypothesis,
                                         const std::vector<bool>& wanted,
                                         const rollout::ScoreOptions& options);
  absl::StatusOr<EngineScores> ScoreEach(const RecordHypothesis& hypothesis,
                                         const std::vector<bool>& wanted,
                                         const rollout::ScoreOptions& options);
  bool Stale(const RecordHypothesis& hypothesis, int64_t completion) const;

  const offpolicy::Capture& capture_;
  const CaptureWeights& weights_;
  EngineForward& engine_;
  const std::string model_;
  const rollout::ScoreOptions claims_;
  const std::set<int64_t> versions_;
  const bool carries_kv_;
  std::function<void(int64_t)> progress_ = [](int64_t) {};
  std::map<int64_t, std::vector<HostTensor>> tensors_;  // as served
  std::map<Key, std::unique_ptr<rollout::StagedWeights>> staged_;
};

// Completions with a token of `version`.
std::vector<bool> HavingVersion(const offpolicy::Capture& capture, int64_t version);

}  // namespace tandem::drift
