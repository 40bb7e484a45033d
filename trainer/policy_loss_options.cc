#include "trainer/policy_loss_options.h"

namespace tandem::trainer {

void BindOptions(OptionBinder& binder, PolicyLossOptions& options) {
  binder.Choice("normalisation", &options.normalisation,
                {{"token", Normalisation::kToken},
                 {"sequence", Normalisation::kSequence},
                 {"constant", Normalisation::kConstant}},
                "divide the sum over tokens by: trained tokens; tokens of the completion, then "
                "completions; completions x constant_length");
  binder.Integer("constant_length", &options.constant_length, {.min = 0}, "tokens",
                 "for normalisation constant; 0: sampling.max_new_tokens");
  binder.Number("clip_low", &options.clip_low, {.min = 0, .max = 1}, "",
                "eps_low: the ratio is clipped below at 1 - clip_low");
  binder.Number("clip_high", &options.clip_high, {.min = 0}, "",
                "eps_high: the ratio is clipped above at 1 + clip_high");
  binder.Number("dual_clip", &options.dual_clip, {.min = 0}, "",
                "bounds the loss of a negative advantage at this ratio; 0: off, else over 1");
  binder.Number("kl_coefficient", &options.kl_coefficient, {.min = 0}, "",
                "weight of the KL to the frozen starting model; 0: none");
  binder.Choice("kl_place", &options.kl_place,
                {{"loss", KlPlace::kLoss}, {"reward", KlPlace::kReward}},
                "where it is charged: a term of the loss, or taken off each completion's reward "
                "before the advantages");
  binder.Choice("kl_estimator", &options.kl_estimator,
                {{"k1", KlEstimator::kK1}, {"k2", KlEstimator::kK2}, {"k3", KlEstimator::kK3}},
                "of that KL; k1 without kl_ratio_weighted has no expected gradient");
  binder.Flag(
      "kl_ratio_weighted", &options.kl_ratio_weighted,
      "weight the estimator by target/behaviour: gradient of the reverse KL off-policy too");
}

}  // namespace tandem::trainer
