// CorrectionOptions: knobs of arrow 6. Apart from correction.h so that option trees stay free of
// LibTorch.
#ifndef TANDEM_COMMON_OFFPOLICY_CORRECTION_OPTIONS_H_
#define TANDEM_COMMON_OFFPOLICY_CORRECTION_OPTIONS_H_

#include "common/base/options.h"

namespace tandem::offpolicy {

enum class CorrectionMode { kDecoupled, kBypass, kMeasureOnly };
enum class CorrectionKind { kOff, kTokenTis };
enum class DenominatorKind { kKept, kAll };

struct CorrectionOptions {
  CorrectionMode mode = CorrectionMode::kDecoupled;
  CorrectionKind kind = CorrectionKind::kTokenTis;
  double max_weight = 2;  // C
  DenominatorKind denominator = DenominatorKind::kKept;
  // A completion with a token of exp(delta) below this is refused. 0: off.
  double veto_threshold = 0;
  // A completion of T tokens is refused when abs(mean delta + s^2 / 2) > z s / sqrt(T), where s is
  // the standard deviation of delta in a healthy run: the share of false refusals is the same at
  // every length. z = 0: off.
  double geometric_z = 0;
  double geometric_noise = 0.01;  // s
};
void BindOptions(OptionBinder& binder, CorrectionOptions& options);

}  // namespace tandem::offpolicy

#endif  // TANDEM_COMMON_OFFPOLICY_CORRECTION_OPTIONS_H_
