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

struct NamedCause {
  std::string cause;          // PartName: "cast", "temperature", ...
  std::string label;          // cause inside the record with its strength: "top-p 0.95"; else empty
  offpolicy::Interval share;  // of the mean square; 0 for a cause that scoring again cannot show
  StrengthKind kind = StrengthKind::kNone;
  offpolicy::Interval strength;  // of the fault parameter, if the cause has one
  std::string evidence;          // the measurement in words
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

struct VerdictInputs {
  const PartShares* shares = nullptr;
  const RecordDiagnosis* diagnosis = nullptr;
  const SamplerDiagnosis* sampler = nullptr;
  double calibration_z = 0;
  int64_t calibration_tokens = 0;
};
Verdict Judge(const VerdictInputs& inputs);

}  // namespace tandem::drift
