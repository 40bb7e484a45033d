// Verdict: which causes are named, what stays open, and which measurement would decide
// (docs/methods.md). Pure.
//
// A part of the ablation is named if the interval of its share of the mean square excludes 0, the
// share is at least kLeastShare, and the part is larger than fp32 log-probs can resolve. The
// ablation step that measured it changed nothing else, so it is also the measurement that
// discriminates. The server's record and the trainer's record are places, not causes: the diagnosis
// names the causes inside the record, and what it leaves unexplained stays open.
#pragma once

#include <string>
#include <vector>

#include "common/statistics/cluster_bootstrap.h"
#include "drift_lab/ablation/part_shares.h"
#include "drift_lab/diagnosis/record_diagnosis.h"
#include "drift_lab/diagnosis/sampler_diagnosis.h"

namespace tandem::drift {

inline constexpr double kLeastShare = 0.02;
// The abs(z) of the calibration test that one healthy capture in a hundred exceeds.
inline constexpr double kCalibrationAlarm = 2.576;

// A cause outside the record has no label and no strength.
struct NamedCause : DiagnosedCause {
  offpolicy::Interval share;  // of the mean square; 0 for a cause that scoring again cannot show
};

struct OpenQuestion {
  std::string what;      // what is not explained
  std::string deciding;  // the measurement that would decide
};

struct Verdict {
  std::vector<NamedCause> named;  // by share, largest first
  std::vector<OpenQuestion> open;
  // The share of the mean square that no named cause carries; NaN if there is nothing to explain.
  offpolicy::Interval unexplained;
  bool nothing_to_explain = false;  // the drift is 0, or less than fp32 log-probs can resolve
};

// `calibration_z` is over the tokens of `shares`.
Verdict Judge(const PartShares& shares, const RecordDiagnosis& diagnosis,
              const SamplerDiagnosis& sampler, double calibration_z);

}  // namespace tandem::drift
