// HypothesisSearch: tries hypotheses about a record on a few completions and says how much of the
// difference each leaves. The families of hypotheses (hypothesis_families.h) are searched with it.
//
// Use from one thread. Cost: one engine pass over the screened completions for every Try.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/capture/capture.h"
#include "drift_lab/hypotheses/part.h"
#include "drift_lab/hypotheses/record_hypothesis.h"
#include "drift_lab/hypotheses/record_replay.h"

namespace tandem::drift {

// Two fp32 log-probs closer than this are the same: a few units in the last place of a sum over a
// vocabulary.
inline constexpr double kSameLogprob = 2e-5;
// Differences count up to this many nats, so that one impossible token does not outweigh all
// others.
inline constexpr double kLargestResidual = 5;

// How far a prediction is from the record.
struct Fit {
  double mean_abs = 0;  // nats
  double matched = 1;   // share of tokens within kSameLogprob
  int64_t num_tokens = 0;

  // Is a hypothesis right, but perhaps for an edge that one token in two hundred shows, or that all
  // together are too small for anything to be said of?
  bool exact() const { return num_tokens > 0 && (matched >= 0.995 || mean_abs <= kLogprobFloor); }
  // Is there nothing to explain?
  bool identical() const { return num_tokens > 0 && matched == 1; }
};

// record - prediction of a token, within +- kLargestResidual (a prediction of -inf: the positive
// end); NaN where either is unknown.
double Residual(float record, float predicted);
Fit FitOf(const std::vector<float>& record, const std::vector<float>& predicted);

// Residual of every token of `to` against `from`: [T].
std::vector<double> Residuals(const std::vector<float>& to, const std::vector<float>& from);

struct Attempt {
  RecordHypothesis hypothesis;
  Part part = Part::kRecord;     // what it changed last
  EngineScores scores;           // log-prob, entropy and kept mass where shifts put them
  std::vector<float> predicted;  // [T] what would have been recorded; NaN outside the screen
  Fit fit;
};

// What was tried: did it give back every token that was looked at?
struct Tried {
  RecordHypothesis hypothesis;
  bool identical = false;
};

// `attempt` becomes `best` where it leaves less.
void KeepBetter(Attempt attempt, Attempt& best);

class HypothesisSearch {
 public:
  HypothesisSearch(const offpolicy::Capture& capture, RecordReplay& replay, rollout::ScorePath path)
      : capture_(capture), replay_(replay), path_(path) {}

  // Completions [S] to look at from here on (empty: all), and at which tokens their log-probs
  // stand.
  void Screen(std::vector<bool> wanted) { wanted_ = std::move(wanted); }
  void Shift(std::vector<int> shifts) { shifts_ = std::move(shifts); }

  absl::StatusOr<Attempt> Try(const RecordHypothesis& hypothesis, Part part);

  const offpolicy::Capture& capture() const { return capture_; }
  RecordReplay& replay() { return replay_; }
  const std::vector<bool>& wanted() const { return wanted_; }
  double claimed_temperature() const { return capture_.manifest.sampling.temperature; }
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
