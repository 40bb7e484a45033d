// CorrectionOptions: the options of stage 6. They are separate from correction.h so that option
// trees can include them without its code.
#pragma once

#include "absl/status/status.h"
#include "common/options/options.h"

namespace tandem::offpolicy {

enum class CorrectionMode { kDecoupled, kBypass, kMeasureOnly };

// The unit of the ratio proximal / behaviour (a token; the product over its completion; the
// geometric mean over its completion), and what happens at the bounds:
//   tis   min(w, max_weight)
//   mask  a token is not kept if w is outside [min_weight, max_weight]
//   clip  w is clipped to [min_weight, max_weight]
enum class CorrectionKind {  // by level, then by bound
  kOff,
  kTokenTis,
  kTokenMask,
  kTokenClip,
  kSequenceTis,
  kSequenceMask,
  kSequenceClip,
  kGeometricTis,
  kGeometricMask,
  kGeometricClip
};
enum class Level { kToken, kSequence, kGeometric };
enum class Bound { kTruncate, kMask, kClip };  // tis, mask, clip
enum class DenominatorKind { kKept, kAll };

// The two choices of a kind other than kOff.
constexpr Level LevelOf(CorrectionKind kind) {
  return static_cast<Level>((static_cast<int>(kind) - 1) / 3);
}
constexpr Bound BoundOf(CorrectionKind kind) {
  return static_cast<Bound>((static_cast<int>(kind) - 1) % 3);
}

struct CorrectionOptions {
  CorrectionMode mode = CorrectionMode::kDecoupled;
  CorrectionKind kind = CorrectionKind::kTokenTis;
  double min_weight = 0;
  double max_weight = 2;  // C
  DenominatorKind denominator = DenominatorKind::kKept;
  // Rejects a completion that has a token with exp(delta) below this. 0: off.
  double veto_threshold = 0;
  // Rejects a completion whose exp(mean delta) is outside [geometric_min, geometric_max]. 0: no
  // bound on that side.
  double geometric_min = 0, geometric_max = 0;
  // Rejects a completion of T tokens when abs(mean delta + s^2 / 2) > z s / sqrt(T), where s is the
  // standard deviation of delta in a healthy run. The share of false rejections is then the same at
  // every length. z = 0: off.
  double geometric_z = 0;
  double geometric_noise = 0.01;  // s
  // Rejects a completion when the mean, or the maximum, of e^delta - 1 - delta is above this. 0:
  // off.
  double k3_mean_max = 0, k3_token_max = 0;
  // Masks and filters spare tokens whose advantage is 0 or positive.
  bool negative_only = false;
  // Divides the weights by their mean over the batch, after the bounds.
  bool batch_normalise = false;
};
void BindOptions(OptionBinder& binder, CorrectionOptions& options);

// Checks what the range of a single field cannot express; messages name fields under "correction.".
//   INVALID_ARGUMENT  bounds that cross; min_weight for a kind without a lower bound;
//                     batch_normalise without weights; negative_only without a mask or filter
absl::Status CheckOptions(const CorrectionOptions& options);

// True if tokens get weights of the kind.
bool HasWeights(const CorrectionOptions& options);

// True if a filter on completions is on. In bypass mode, only filters need the proximal policy.
bool HasFilters(const CorrectionOptions& options);

}  // namespace tandem::offpolicy
