// SamplerDiagnosis: were the tokens sampled from the distribution that was recorded? If the sampler
// applied a transform after the log-probs were recorded, record and replay agree, so scoring the
// tokens again cannot show it. Each transform is judged by the likelihood of the sampled tokens
// under it.
#pragma once

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/capture/capture.h"
#include "drift_lab/diagnosis/record_diagnosis.h"
#include "drift_lab/hypotheses/record_replay.h"

namespace tandem::drift {

// A cause is named if it makes the tokens likelier than the recorded distribution by
// kLeastLikelihoodGain nats, and likelier than any other cause by kLeastLead nats. Twice the gain
// is a chi-square of one degree of freedom, which exceeds 12 once in two thousand.
inline constexpr double kLeastLikelihoodGain = 6, kLeastLead = 3;

struct SamplerCandidate {
  DiagnosedCause cause;
  double gain = 0;  // of log-likelihood, nats over all tokens
};

struct SamplerDiagnosis {
  // The statistic of the calibration test of the samples under the claimed distribution:
  // sum(-log p - H) / sqrt(sum Var).
  double z = 0;
  std::vector<SamplerCandidate> candidates;  // likeliest first; empty if nothing looked wrong
  std::optional<DiagnosedCause> named;
  bool suspicious = false;  // something is wrong, whether a cause is named or not
};

// `claimed` is the full replay under the claims. Only for records that agree with it.
//   any error of RecordReplay::Score
absl::StatusOr<SamplerDiagnosis> DiagnoseSampler(const offpolicy::Capture& capture,
                                                 RecordReplay& replay, const EngineScores& claimed,
                                                 rollout::ScorePath path);

}  // namespace tandem::drift
