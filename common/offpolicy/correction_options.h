// CorrectionOptions: knobs of arrow 6. Apart from correction.h so that option trees read them
// without its code.
#ifndef TANDEM_COMMON_OFFPOLICY_CORRECTION_OPTIONS_H_
#define TANDEM_COMMON_OFFPOLICY_CORRECTION_OPTIONS_H_

#include "absl/status/status.h"
#include "common/options/options.h"

namespace tandem::offpolicy {

enum class CorrectionMode { kDecoupled, kBypass, kMeasureOnly };

// What proximal / behaviour is taken of (a token, the product over its completion, the geometric
// mean over its completion), and what happens at the bounds:
//   tis   min(w, max_weight)
//   mask  w inside [min_weight, max_weight]; outside, the token is not kept
//   clip  w moved into [min_weight, max_weight]
enum class CorrectionKind {
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
enum class DenominatorKind { kKept, kAll };

struct CorrectionOptions {
  CorrectionMode mode = CorrectionMode::kDecoupled;
  CorrectionKind kind = CorrectionKind::kTokenTis;
  double min_weight = 0;
  double max_weight = 2;  // C
  DenominatorKind denominator = DenominatorKind::kKept;
  // A completion with a token of exp(delta) below this is refused. 0: off.
  double veto_threshold = 0;
  // A completion is refused when exp(mean delta) is outside [geometric_min, geometric_max]. 0: that
  // side is off.
  double geometric_min = 0, geometric_max = 0;
  // A completion of T tokens is refused when abs(mean delta + s^2 / 2) > z s / sqrt(T), where s is
  // the standard deviation of delta in a healthy run: the share of false refusals is the same at
  // every length. z = 0: off.
  double geometric_z = 0;
  double geometric_noise = 0.01;  // s
  // A completion is refused when the mean, or any, of e^delta - 1 - delta is above this. 0: off.
  double k3_mean_max = 0, k3_token_max = 0;
  // Masks and filters spare tokens whose advantage is not negative.
  bool negative_only = false;
  // Weights are divided by their mean over the batch, after their bounds.
  bool batch_normalise = false;
};
void BindOptions(OptionBinder& binder, CorrectionOptions& options);

// What a single field's range cannot say; the message names fields under "correction.".
//   INVALID_ARGUMENT  bounds that cross; min_weight for a kind without a lower bound;
//                     batch_normalise without weights; negative_only without a mask or filter
absl::Status CheckOptions(const CorrectionOptions& options);

// Does any filter look at completions? Bypass needs the proximal policy only then.
bool HasFilters(const CorrectionOptions& options);

}  // namespace tandem::offpolicy

#endif  // TANDEM_COMMON_OFFPOLICY_CORRECTION_OPTIONS_H_
