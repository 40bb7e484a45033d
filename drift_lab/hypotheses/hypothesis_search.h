// HypothesisSearch: replays hypotheses about a record on a few completions (the screen), and
// measures how much of the difference between record and replay each hypothesis leaves. The
// families of hypotheses (hypothesis_families.h) use it.
//
// Use from one thread. Every Try costs one engine pass over the screened completions.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/capture/capture.h"
#include "drift_lab/hypotheses/part.h"
#include "drift_lab/hypotheses/record_hypothesis.h"
#include "drift_lab/hypotheses/record_replay.h"

namespace tandem::drift {

// Two fp32 log-probs that differ by less are considered equal: a few units in the last place of a
// sum over a vocabulary.
inline constexpr double kSameLogprob = 2e-5;
// Differences are clamped to this many nats, so that one token of probability 0 does not outweigh
// all others.
inline constexpr double kLargestResidual = 5;

// How far a prediction is from the record.
struct Fit {
  double mean_abs = 0;  // nats
  double matched = 1;   // share of tokens within kSameLogprob
  int64_t num_tokens = 0;

  // True if the hypothesis is right, except perhaps at an edge that one token in two hundred shows,
  // or if what it leaves is below what fp32 can resolve.
  bool exact() const { return num_tokens > 0 && (matched >= 0.995 || mean_abs <= kLogprobFloor); }
  // True if nothing is left to explain.
  bool identical() const { return num_tokens > 0 && matched == 1; }
};

// record - prediction for one token, clamped to +- kLargestResidual, so a prediction of -inf gives
// the positive end. NaN if either is unknown.
double Residual(float record, float predicted);
Fit FitOf(const std::vector<float>& record, const std::vector<float>& predicted);

// The residual of every token of `to` against `from`, [T].
std::vector<double> Residuals(const std::vector<float>& to, const std::vector<float>& from);

struct Attempt {
  RecordHypothesis hypothesis;
  Part part = Part::kRecord;     // what the hypothesis changed last
  EngineScores scores;           // log-probs, entropies and retained probability mass are shifted
  std::vector<float> predicted;  // [T] what would have been recorded; NaN outside the screen
  Fit fit;
};

// A hypothesis that was tried, and whether it gave back the record of every screened token.
struct Tried {
  RecordHypothesis hypothesis;
  bool identical = false;
};

// Replaces `best` by `attempt` if `attempt` leaves less. Returns the error of a failed attempt.
void KeepBetter(Attempt attempt, Attempt& best);
absl::Status KeepBetter(absl::StatusOr<Attempt> attempt, Attempt& best);

class HypothesisSearch {
 public:
  HypothesisSearch(const offpolicy::Capture& capture, RecordReplay& replay, rollout::ScorePath path)
      : capture_(capture), replay_(replay), path_(path) {}

  // From now on, only the completions `wanted` [S] are replayed (empty: all), and their log-probs
  // are shifted by `shifts` [S] tokens.
  void Screen(std::vector<bool> wanted) { wanted_ = std::move(wanted); }
  void Shift(std::vector<int> shifts) { shifts_ = std::move(shifts); }

  absl::StatusOr<Attempt> Try(const RecordHypothesis& hypothesis, Part part);
  // `base` without what `part` changes in its hypothesis.
  absl::StatusOr<Attempt> Without(const Attempt& base, Part part);

  const offpolicy::Capture& capture() const { return capture_; }
  RecordReplay& replay() { return replay_; }
  const std::vector<bool>& wanted() const { return wanted_; }
  const std::vector<Tried>& tried() const { return tried_; }
  int64_t num_tries() const { return static_cast<int64_t>(tried_.size()); }

 private:
  const offpolicy::Capture& capture_;
  RecordReplay& replay_;
  const rollout::ScorePath path_;
  std::vector<bool> wanted_;
  std::vector<int> shifts_;
  std::vector<Tried> tried_;
};

}  // namespace tandem::drift
