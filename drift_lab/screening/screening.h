// Screen: the verdict from records alone. Stage 3 of a verdict from records: runs every test,
// decides which of them mean anything, and says in one sentence what the numbers show. Used by
// `tandem drift why RECORDS`. Pure: the same records and seed give the same verdict.
//
// Nothing wrong is named with confidence: of a healthy record, the chance that any sign accuses is
// at most kRecordLevel. Where the numbers do not decide, the sign says what would.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "drift_lab/records/records.h"
#include "drift_lab/screening/sign.h"
#include "drift_lab/screening/token_pairs.h"
#include "drift_lab/screening/training_effect.h"

namespace tandem::drift {

enum class ScreeningVerdict : uint8_t {
  kNothingToCompare,  // no token has values of both sides
  kIdentical,         // bit by bit
  kNumbersAlone,      // of the size that number formats and kernels give, and nothing shows
  kShown,             // at least one sign accuses
  kNeedsWeights,      // more than numbers alone, and the records do not tell what
};
const char* ScreeningVerdictName(ScreeningVerdict verdict);

// Up to these, differences are of the size that number formats and kernels give
// (docs/foreign_engines.md has the measurement). Both sides claim float32: the first.
inline constexpr double kMostFloat32MeanAbs = 1e-3, kMostBfloat16MeanAbs = 0.08;
inline constexpr double kMostBfloat16K3 = 5e-3;

struct Screening {
  std::string path;
  int64_t num_rows = 0, num_tokens = 0, num_drawn = 0;
  ScreeningVerdict verdict = ScreeningVerdict::kNothingToCompare;
  std::string headline;     // one or two full sentences
  std::string command;      // what to run next; empty: nothing
  std::vector<Sign> signs;  // what accuses first, then shown, suspected, open, ruled out
  TrainingEffect effect;
  TokenPairs pairs;  // as the tests used them: values that stand for "no value" are NaN
  std::vector<std::string> notes;  // what the numbers leave out, or were made of
};

Screening Screen(const Records& records, uint64_t seed);

}  // namespace tandem::drift
