#include "common/offpolicy/objective_options.h"

#include "common/base/status_macros.h"

namespace tandem::offpolicy {
namespace {

void BindNormalisation(OptionBinder& binder, ObjectiveOptions& options) {
  binder.Choice("normalisation", &options.normalisation,
                {{"token", Normalisation::kToken},
                 {"sequence", Normalisation::kSequence},
                 {"constant", Normalisation::kConstant}},
                "divide the sum over tokens by: trained tokens; tokens of the completion, then "
                "completions; completions x constant_length");
  binder.Integer("constant_length", &options.constant_length, {.min = 0}, "tokens",
                 "for normalisation constant; 0: sampling.max_new_tokens");
}

void BindClip(OptionBinder& binder, ObjectiveOptions& options) {
  binder.Choice("kind", &options.kind,
                {{"clip", ObjectiveKind::kClip},
                 {"cispo", ObjectiveKind::kCispo},
                 {"topr", ObjectiveKind::kTopr},
                 {"gspo", ObjectiveKind::kGspo},
                 {"sapo", ObjectiveKind::kSapo},
                 {"vespo", ObjectiveKind::kVespo},
                 {"m2po", ObjectiveKind::kM2po},
                 {"m2po_clip", ObjectiveKind::kM2poClip},
                 {"dppo_tv", ObjectiveKind::kDppoTv},
                 {"dppo_kl", ObjectiveKind::kDppoKl},
                 {"penalty", ObjectiveKind::kPenalty},
                 {"policy_gradient", ObjectiveKind::kPolicyGradient},
                 {"preference", ObjectiveKind::kPreference}},
                "the policy term (docs/corrections.md); topr, vespo, m2po and m2po_clip need "
                "correction.mode bypass; preference: a loss of pairs, averaged over pairs "
                "(docs/algorithms.md)");
  binder.Number("clip_low", &options.clip_low, {.min = 0, .max = 1}, "",
                "eps_low: the ratio is clipped below at 1 - clip_low");
  binder.Number("clip_high", &options.clip_high, {.min = 0}, "",
                "eps_high: the ratio is clipped above at 1 + clip_high");
  binder.Number("dual_clip", &options.dual_clip, {.min = 0}, "",
                "bounds the loss of a negative advantage at this ratio; 0: off, else over 1");
}

}  // namespace

void BindOptions(OptionBinder& binder, ObjectiveOptions& options) {
  BindNormalisation(binder, options);
  BindClip(binder, options);
  binder.Number("cispo_max", &options.cispo_max, {.min = 1}, "",
                "cispo: ceiling on the detached ratio");
  binder.Number("gspo_clip_low", &options.gspo_clip_low, {.min = 0, .max = 1}, "",
                "gspo: the completion's ratio is clipped below at 1 - this");
  binder.Number("gspo_clip_high", &options.gspo_clip_high, {.min = 0}, "",
                "gspo: the completion's ratio is clipped above at 1 + this");
  binder.Number("sapo_tau_positive", &options.sapo_tau_positive, {.min = 0, .exclusive_min = true},
                "", "sapo: temperature of the gate where the advantage is positive");
  binder.Number("sapo_tau_negative", &options.sapo_tau_negative, {.min = 0, .exclusive_min = true},
                "", "sapo: temperature of the gate elsewhere");
  binder.Number("vespo_k_positive", &options.vespo_k_positive, {.min = 0}, "",
                "vespo: power of W where the advantage is not negative");
  binder.Number("vespo_lambda_positive", &options.vespo_lambda_positive, {.min = 0}, "",
                "vespo: decay in W where the advantage is not negative");
  binder.Number("vespo_k_negative", &options.vespo_k_negative, {.min = 0}, "",
                "vespo: power of W where the advantage is negative");
  binder.Number("vespo_lambda_negative", &options.vespo_lambda_negative, {.min = 0}, "",
                "vespo: decay in W where the advantage is negative");
  binder.Number("m2po_max", &options.m2po_max, {.min = 0}, "nats^2",
                "m2po and m2po_clip: ceiling on the mean squared log ratio of the tokens a clip "
                "could act on");
  binder.Number("penalty_coefficient", &options.penalty_coefficient, {.min = 0}, "",
                "penalty: weight of KL(centre || target) beside the ratio, at the start");
  binder.Number("dppo_max_tv", &options.dppo_max_tv, {.min = 0, .max = 1}, "",
                "dppo_tv: the probability of a token may move this far in the advantage's way");
  binder.Number("dppo_max_kl", &options.dppo_max_kl, {.min = 0}, "nats",
                "dppo_kl: the same for KL(centre || target) of token against rest");
}

absl::Status CheckOptions(const CorrectionOptions& correction, const ObjectiveOptions& objective) {
  TANDEM_RETURN_IF_ERROR(CheckOptions(correction));
  if (objective.dual_clip > 0 && objective.dual_clip <= 1) {
    return InvalidArgument("loss.dual_clip is ", objective.dual_clip,
                           "; it must be over 1, or 0 for off");
  }
  if (objective.dual_clip > 0 && objective.kind != ObjectiveKind::kClip) {
    return InvalidArgument(
        "loss.dual_clip bounds loss.kind clip only: set it to 0, or the kind to clip");
  }
  const bool weighs_itself = objective.kind == ObjectiveKind::kTopr ||
                             objective.kind == ObjectiveKind::kVespo || IsM2po(objective.kind);
  if (weighs_itself && correction.mode != CorrectionMode::kBypass) {
    return InvalidArgument(
        "loss.kind topr, vespo, m2po and m2po_clip weigh by target/behaviour themselves: set "
        "correction.mode "
        "bypass (its filters still work), so that no token is weighted twice or not at all");
  }
  if (objective.normalisation == Normalisation::kConstant && objective.constant_length == 0) {
    return InvalidArgument(
        "loss.normalisation constant needs loss.constant_length, or the longest completion");
  }
  return absl::OkStatus();
}

}  // namespace tandem::offpolicy
