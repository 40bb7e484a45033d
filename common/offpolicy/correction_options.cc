#include "common/offpolicy/correction_options.h"

#include "common/base/status_macros.h"

namespace tandem::offpolicy {
namespace {

void BindWeight(OptionBinder& binder, CorrectionOptions& options) {
  binder.Choice("mode", &options.mode,
                {{"decoupled", CorrectionMode::kDecoupled},
                 {"bypass", CorrectionMode::kBypass},
                 {"measure_only", CorrectionMode::kMeasureOnly}},
                "decoupled: weight the loss by proximal/behaviour; bypass: centre the loss on the "
                "behaviour policy, weight 1; measure_only: weight 1, no filter");
  binder.Choice("kind", &options.kind,
                {{"off", CorrectionKind::kOff},
                 {"token_tis", CorrectionKind::kTokenTis},
                 {"token_mask", CorrectionKind::kTokenMask},
                 {"token_clip", CorrectionKind::kTokenClip},
                 {"sequence_tis", CorrectionKind::kSequenceTis},
                 {"sequence_mask", CorrectionKind::kSequenceMask},
                 {"sequence_clip", CorrectionKind::kSequenceClip},
                 {"geometric_tis", CorrectionKind::kGeometricTis},
                 {"geometric_mask", CorrectionKind::kGeometricMask},
                 {"geometric_clip", CorrectionKind::kGeometricClip}},
                "w = proximal/behaviour of a token, of its completion (product), or the geometric "
                "mean over it; tis: min(max_weight, w); mask: drop tokens outside [min_weight, "
                "max_weight] (token_mask is IcePop); clip: move w into it; off: 1");
  binder.Number("min_weight", &options.min_weight, {.min = 0, .max = 1}, "",
                "lower bound of mask and clip");
  binder.Number("max_weight", &options.max_weight, {.min = 1}, "", "ceiling on the weight");
  binder.Choice("denominator", &options.denominator,
                {{"kept", DenominatorKind::kKept}, {"all", DenominatorKind::kAll}},
                "do refused tokens leave the divisor of the loss (kept) or stay in it (all)");
}

}  // namespace

void BindOptions(OptionBinder& binder, CorrectionOptions& options) {
  BindWeight(binder, options);
  binder.Number("veto_threshold", &options.veto_threshold, {.min = 0, .max = 1}, "",
                "refuse a completion with a token of proximal/behaviour below this; 0: off");
  binder.Number("geometric_min", &options.geometric_min, {.min = 0, .max = 1}, "",
                "refuse a completion whose geometric mean of proximal/behaviour is below; 0: off");
  binder.Number("geometric_max", &options.geometric_max, {.min = 0}, "",
                "refuse a completion whose geometric mean of proximal/behaviour is above; 0: off");
  binder.Number("geometric_z", &options.geometric_z, {.min = 0}, "standard errors",
                "refuse a completion whose mean log ratio is further from its expectation; 0: off");
  binder.Number("geometric_noise", &options.geometric_noise, {.min = 0}, "nats",
                "standard deviation of delta per token in a healthy run, for geometric_z");
  binder.Number("k3_mean_max", &options.k3_mean_max, {.min = 0}, "nats",
                "refuse a completion whose mean of e^delta - 1 - delta is above; 0: off");
  binder.Number("k3_token_max", &options.k3_token_max, {.min = 0}, "nats",
                "refuse a completion with a token of e^delta - 1 - delta above (TRM); 0: off");
  binder.Flag("negative_only", &options.negative_only,
              "masks and filters spare tokens whose advantage is not negative");
  binder.Flag("batch_normalise", &options.batch_normalise,
              "divide the weights by their mean over the step's batch; costs a proximal pass");
}

bool HasWeights(const CorrectionOptions& options) {
  return options.mode == CorrectionMode::kDecoupled && options.kind != CorrectionKind::kOff;
}

bool HasFilters(const CorrectionOptions& options) {
  return options.veto_threshold > 0 || options.geometric_min > 0 || options.geometric_max > 0 ||
         options.geometric_z > 0 || options.k3_mean_max > 0 || options.k3_token_max > 0;
}

absl::Status CheckOptions(const CorrectionOptions& options) {
  if (options.min_weight > 0 && options.kind != CorrectionKind::kOff &&
      BoundOf(options.kind) == Bound::kTruncate) {
    return InvalidArgument(
        "correction.min_weight has no use with a tis kind, which is open below: take the mask or "
        "clip kind of the same level");
  }
  if (options.geometric_max > 0 && options.geometric_min > options.geometric_max) {
    return InvalidArgument("correction.geometric_min ", options.geometric_min,
                           " is above geometric_max ", options.geometric_max,
                           ": every completion would be refused");
  }
  if (options.batch_normalise && !HasWeights(options)) {
    return InvalidArgument(
        "correction.batch_normalise needs weights: mode decoupled and a kind other than off");
  }
  const bool masks = options.kind != CorrectionKind::kOff && BoundOf(options.kind) == Bound::kMask;
  if (options.negative_only && !masks && !HasFilters(options)) {
    return InvalidArgument(
        "correction.negative_only has nothing to spare: choose a mask kind or set a filter");
  }
  return absl::OkStatus();
}

}  // namespace tandem::offpolicy
