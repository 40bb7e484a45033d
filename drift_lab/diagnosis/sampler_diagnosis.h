// DrawDiagnosis: were the tokens drawn from the distribution that was recorded? A drift that no
// re-score can see, because record and replay agree: log-probs recorded before a transform that the
// sampler applied. Each transform is judged by the likelihood of the drawn tokens under it.
#pragma once

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/capture/capture.h"
#include "drift_lab/diagnosis/record_diagnosis.h"
#include "drift_lab/hypotheses/record_replay.h"

namespace tandem::drift {

// A cause is named when the tokens are likelier by this many nats than as recorded (a chi-square of
// one degree exceeds twice that once in two thousand), and by kLeastLead than under any other.
inline constexpr double kLeastLikelihoodGain = 6, kLeastLead = 3;

struct DrawCandidate {
  DiagnosedCause cause;
  double gain = 0;  // nats over all tokens
};

struct DrawDiagnosis {
  double z = 0;  // calibration of the draws against the claimed distribution: sum(-log p - H) /
                 // sqrt(sum Var)
  std::vector<DrawCandidate> candidates;  // likeliest first; empty where nothing looked wrong
  std::optional<DiagnosedCause> named;
  bool suspicious = false;  // something is wrong, named or not
};

// `claimed`: full replay under the claims. Only for records that agree with it.
//   errors of RecordReplay::Score
absl::StatusOr<DrawDiagnosis> DiagnoseDraws(const offpolicy::Capture& capture, RecordReplay& replay,
                                            const EngineScores& claimed, rollout::ScorePath path);

}  // namespace tandem::drift
