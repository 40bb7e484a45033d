// Verdict: which causes are named, which are not, and what would decide (drift.md section 3). Pure.
//
// A part of the ladder is named when the interval of its share of the mean square leaves 0 out, the
// share is at least kLeastShare, and the part is larger than fp32 log-probs can say. The experiment
// that measured it switched nothing else, so it is its own discriminating measurement. The record
// and the trainer's record are not causes but places: what is inside the record is named by its
// diagnosis, and what that leaves stays open.
#pragma once

#include <string>
#include <vector>

#include "common/statistics/cluster_bootstrap.h"
#include "drift_lab/ablation/part_shares.h"
#include "drift_lab/diagnosis/sampler_diagnosis.h"
#include "drift_lab/diagnosis/record_diagnosis.h"

namespace tandem::drift {

inline constexpr double kLeastShare = 0.02;
// abs(z) of the sampler's calibration that one honest capture in a hundred reaches.
inline constexpr double kCalibrationAlarm = 2.576;

struct NamedCause {
  std::string cause;  // PartName: "cast", "temperature", ...
  std::string label;  // with its amount, of a cause inside the record: "top-p 0.95"; else empty
  offpolicy::Interval share;  // of the mean square; 0 of what a re-score cannot see
  StrengthKind kind = StrengthKind::kNone;
  offpolicy::Interval strength;  // of the dial, where it has one
  std::string evidence;          // the measurement in words
};

struct OpenQuestion {
  std::string what;      // what is not explained
  std::string deciding;  // the measurement that would decide
};

struct Verdict {
  std::vector<NamedCause> named;  // by share, largest first
  std::vector<OpenQuestion> open;
  // Share of the mean square that no named cause carries, at least; NaN without a gap.
  offpolicy::Interval unexplained;
  bool nothing_to_explain = false;  // the gap is exactly 0, or below what fp32 log-probs can say
};

struct VerdictInputs {
  const PartShares* shares = nullptr;
  const RecordDiagnosis* diagnosis = nullptr;
  const DrawDiagnosis* draws = nullptr;
  double calibration_z = 0;
  int64_t calibration_tokens = 0;
};
Verdict Judge(const VerdictInputs& inputs);

}  // namespace tandem::drift
