#include "common/offpolicy/correction_options.h"

namespace tandem::offpolicy {

void BindOptions(OptionBinder& binder, CorrectionOptions& options) {
  binder.Choice("mode", &options.mode,
                {{"decoupled", CorrectionMode::kDecoupled},
                 {"bypass", CorrectionMode::kBypass},
                 {"measure_only", CorrectionMode::kMeasureOnly}},
                "decoupled: weight the loss by proximal/behaviour; bypass: centre the clip on the "
                "behaviour policy, weight 1; measure_only: weight 1");
  binder.Choice("kind", &options.kind,
                {{"off", CorrectionKind::kOff}, {"token_tis", CorrectionKind::kTokenTis}},
                "token_tis: min(max_weight, proximal/behaviour) per token; off: 1");
  binder.Number("max_weight", &options.max_weight, {.min = 1}, "",
                "ceiling on the weight of one token");
  binder.Choice("denominator", &options.denominator,
                {{"kept", DenominatorKind::kKept}, {"all", DenominatorKind::kAll}},
                "do refused tokens leave the divisor of the loss (kept) or stay in it (all)");
  binder.Number("veto_threshold", &options.veto_threshold, {.min = 0, .max = 1}, "",
                "refuse a completion with a token of proximal/behaviour below this; 0: off");
  binder.Number("geometric_z", &options.geometric_z, {.min = 0}, "standard errors",
                "refuse a completion whose mean log ratio is further from its expectation; 0: off");
  binder.Number("geometric_noise", &options.geometric_noise, {.min = 0}, "nats",
                "standard deviation of delta per token in a healthy run, for geometric_z");
}

}  // namespace tandem::offpolicy
