// RecordReplay: computes a capture's log-probs as the serving engine would have recorded them under
// a hypothesis. Each position is computed under the weights that the server had at that time. Free
// of protobuf and LibTorch.
//
// Use from one thread. Memory: packed weights of every version in the capture, and those of a few
// hypotheses.
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

// How the engine replays a hypothesis.
struct ReplayWay {
  rollout::ScorePath path = rollout::ScorePath::kPrefill;
  bool alone = false;             // one completion at a time
  bool own_version_only = false;  // every token and its KV under the token's own version
};

class RecordReplay {
 public:
  // `model` is the directory with the weights that servers started from. All arguments must outlive
  // this object.
  RecordReplay(const offpolicy::Capture& capture, const CaptureWeights& weights,
               EngineForward& engine, std::string model);

  // The replayed scores [T]; NaN for completions that are not in `wanted` [S] (empty: all are). If
  // servers keep KV across an install, a position is computed under the version of the token that
  // it predicts, over the KV that earlier positions left; otherwise every token is computed under
  // its own version alone.
  //   NOT_FOUND, DATA_LOSS  as CaptureWeights
  absl::StatusOr<EngineScores> Score(const RecordHypothesis& hypothesis,
                                     const std::vector<bool>& wanted, const ReplayWay& way);

  // True if a token may depend on KV of more than one version.
  bool CarriesKv() const { return carries_kv_; }

  const ModelConfig& config() const { return engine_.config(); }
  // Do the servers say that they quantise the weights?
  bool ServesQuantised() const;

  // The distances 1, 2, ... for which the capture has the weights of that many versions before each
  // of its versions.
  std::vector<int64_t> VersionsBefore() const;
  // The same, and OtherWeights::kInitial if none of them reaches the first version.
  std::vector<int64_t> Sources() const;
  // The tensors, in ModelTensors order, whose bytes differ from those that many versions before.
  absl::StatusOr<std::vector<std::string>> TensorsThatDiffer(int64_t versions_before);

  // `progress` is called after every few completions, with the number of tokens scored so far.
  void OnProgress(std::function<void(int64_t)> progress) { progress_ = std::move(progress); }

 private:
  // Weights that a pass computes under: of a version, in formats (RecordHypothesis::weight_formats).
  struct Key {
    int64_t version = 0;
    std::optional<OtherWeights> other;
    std::string formats;

    bool claimed() const { return !other && formats.empty(); }
    friend auto operator<=>(const Key&, const Key&) = default;
  };

  absl::StatusOr<const rollout::StagedWeights*> Staged(const Key& key);
  absl::StatusOr<std::unique_ptr<rollout::StagedWeights>> Stage(const Key& key);
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

// Which completions have a token of `version`, [S].
std::vector<bool> HavingVersion(const offpolicy::Capture& capture, int64_t version);

}  // namespace tandem::drift
