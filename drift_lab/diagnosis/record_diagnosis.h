// RecordDiagnosis: why a server's record is not what its engine computes from the same ids, weights
// and settings. Hypotheses are replayed (hypothesis_families.h), the best is kept, and the search
// goes on over what it leaves; rows that stand at the wrong tokens and noise, which no replay
// repeats, are found in the residual itself (record_shift.h, noise_fit.h). What nothing explains
// stays unexplained.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/capture/capture.h"
#include "common/statistics/cluster_bootstrap.h"
#include "drift_lab/diagnosis/noise_fit.h"
#include "drift_lab/diagnosis/record_shift.h"
#include "drift_lab/hypotheses/hypothesis_search.h"
#include "drift_lab/hypotheses/part.h"
#include "drift_lab/hypotheses/record_replay.h"

namespace tandem::drift {

// How sure the amount of a cause is.
enum class StrengthKind {
  kNone,      // the cause has no dial
  kInterval,  // estimated from tokens: 95 % interval
  kExact,  // the replay with this value gives the record back; bounds: values that would do so too
};

struct DiagnosedCause {
  Part part = Part::kRecord;
  std::string label;  // with its amount: "temperature 0.9", "tensor model.norm.weight of version 3"
  StrengthKind kind = StrengthKind::kNone;
  offpolicy::Interval strength;
  std::string evidence;
};

struct RecordDiagnosis {
  // In the order found; a cause's replay holds those before it too.
  std::vector<DiagnosedCause> causes;
  // [causes + 1][T] the record as it would be with none of them, with the first, ...; of a cause
  // that is not replayed (noise), the record itself.
  std::vector<std::vector<float>> predictions;
  Fit before, after;
  bool explained =
      true;        // nothing is left that fp32 log-probs could say, or noise of a known size is
  NoiseFit noise;  // of what replays leave; num_tokens 0 where nothing was left
  ShiftEstimate shifts;
  int64_t num_tries = 0;  // hypotheses replayed
};

struct DiagnosisOptions {
  uint64_t seed = 1;
  int64_t bootstrap_replicates = offpolicy::BootstrapOptions().replicates;
  int64_t screened_completions = 16;
  int64_t screened_tokens = 512;  // as many more completions as these take, at most 4 times as many
  bool same_arithmetic = true;    // the replay's machine computes as the server's did
};

// `replay` [T]: under the claims, all tokens. progress(tries so far).
//   errors of RecordReplay::Score
absl::StatusOr<RecordDiagnosis> DiagnoseRecord(const offpolicy::Capture& capture,
                                               RecordReplay& replay, const EngineScores& claimed,
                                               rollout::ScorePath path,
                                               const DiagnosisOptions& options,
                                               const std::function<void(int64_t)>& progress);

}  // namespace tandem::drift
