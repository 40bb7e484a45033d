// RecordDiagnosis: why a server's record is not what its engine computes from the same ids, weights
// and settings. The search is greedy: it replays hypotheses (hypothesis_families.h), keeps the
// best, and continues with what that leaves, for at most three causes. Rows at the wrong tokens and
// noise cannot be replayed; they are found in the residual itself (record_shift.h, noise_fit.h).
// What no hypothesis explains stays unexplained.
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

// How the strength of a cause is known.
enum class StrengthKind {
  kNone,      // the cause has no strength
  kInterval,  // estimated from tokens, with a 95 % interval
  kExact,     // the replay with this value gives the record back, as does any within the bounds
};

struct DiagnosedCause {
  Part part = Part::kRecord;
  std::string
      label;  // with its strength: "temperature 0.9", "tensor model.norm.weight of version 3"
  StrengthKind kind = StrengthKind::kNone;
  offpolicy::Interval strength;
  std::string evidence;
};

struct RecordDiagnosis {
  // In the order in which they were found; the replay of a cause includes those before it.
  std::vector<DiagnosedCause> causes;
  // [causes + 1][T]: the record as it would be with none of the causes, with the first, and so on.
  // For a cause that is not replayed (noise) it is the record itself.
  std::vector<std::vector<float>> predictions;
  Fit before, after;
  // What is left is below what fp32 can resolve, or is noise of a known size.
  bool explained = true;
  NoiseFit noise;  // of what the replays leave; num_tokens is 0 if nothing was left
  ShiftEstimate shifts;
  int64_t num_tries = 0;  // hypotheses replayed
};

struct DiagnosisOptions {
  uint64_t seed = 1;
  int64_t bootstrap_replicates = offpolicy::BootstrapOptions().replicates;
  // The screen on which hypotheses are tried has at least this many completions, and more, up to 4
  // times as many, until it has this many tokens.
  int64_t screened_completions = 16, screened_tokens = 512;
  bool same_arithmetic = true;  // this machine computes the same bits as the server's
};

// `claimed` is the replay of all tokens under the claims. `progress` is called with the number of
// hypotheses replayed so far.
//   any error of RecordReplay::Score
absl::StatusOr<RecordDiagnosis> DiagnoseRecord(const offpolicy::Capture& capture,
                                               RecordReplay& replay, const EngineScores& claimed,
                                               rollout::ScorePath path,
                                               const DiagnosisOptions& options,
                                               const std::function<void(int64_t)>& progress);

}  // namespace tandem::drift
