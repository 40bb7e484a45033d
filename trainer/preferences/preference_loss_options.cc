#include "trainer/preferences/preference_loss_options.h"

#include "common/base/status_macros.h"

namespace tandem::trainer {
namespace {

using Kind = PreferenceLossKind;

bool HasLabelSmoothing(Kind kind) {
  return kind == Kind::kDpo || kind == Kind::kDpoNorm || kind == Kind::kRobust ||
         kind == Kind::kExo || kind == Kind::kCpo || kind == Kind::kSimpo;
}

// The losses of a logit to which a margin can be added.
bool HasMargin(Kind kind) {
  return kind == Kind::kDpo || kind == Kind::kDpoNorm || kind == Kind::kDpoHinge ||
         kind == Kind::kRobust || kind == Kind::kCpo || kind == Kind::kSimpo;
}

}  // namespace

void BindOptions(OptionBinder& binder, PreferenceLossOptions& options) {
  binder.Choice("kind", &options.kind,
                {{"dpo", Kind::kDpo},
                 {"dpo_norm", Kind::kDpoNorm},
                 {"dpo_hinge", Kind::kDpoHinge},
                 {"ipo", Kind::kIpo},
                 {"robust", Kind::kRobust},
                 {"exo", Kind::kExo},
                 {"apo_zero", Kind::kApoZero},
                 {"apo_down", Kind::kApoDown},
                 {"cpo", Kind::kCpo},
                 {"simpo", Kind::kSimpo},
                 {"orpo", Kind::kOrpo},
                 {"kto", Kind::kKto}},
                "the loss (docs/preferences.md); cpo, simpo and orpo need no reference policy, kto "
                "reads single completions with a label");
  binder.Number("beta", &options.beta, {.min = 0}, "",
                "coefficient of the implicit reward, tau of ipo, weight of orpo's odds ratio; 0: 2 "
                "for simpo, 0.1 for the others");
  binder.Number("label_smoothing", &options.label_smoothing, {.min = 0, .max = 0.499}, "",
                "dpo, dpo_norm, robust, cpo, simpo: probability that a label is flipped; exo: "
                "probability of the rejected completion, must be over 0");
  binder.Number("ld_alpha", &options.ld_alpha, {.min = 0, .max = 1}, "",
                "LD-DPO: weight of tokens beyond the length of the shorter completion; 1: off");
  binder.Number("rpo_alpha", &options.rpo_alpha, {.min = 0}, "",
                "RPO: weight of the mean negative log-likelihood of the chosen tokens; 0: off");
  binder.Number("cpo_alpha", &options.cpo_alpha, {.min = 0}, "", "the same for cpo");
  binder.Number("simpo_gamma", &options.simpo_gamma, {.min = 0}, "",
                "simpo: target margin between the two rewards");
  binder.Number("desirable_weight", &options.desirable_weight, {.min = 0}, "",
                "kto: weight of desirable completions");
  binder.Number("undesirable_weight", &options.undesirable_weight, {.min = 0}, "",
                "kto: weight of undesirable completions");
}

double Beta(const PreferenceLossOptions& options) {
  if (options.beta > 0) return options.beta;
  return options.kind == Kind::kSimpo ? 2 : 0.1;
}

double NllWeight(const PreferenceLossOptions& options) {
  if (options.kind == Kind::kOrpo) return 1;
  return options.kind == Kind::kCpo ? options.cpo_alpha : options.rpo_alpha;
}

absl::Status CheckOptions(const PreferenceLossOptions& options, bool has_margins) {
  const Kind kind = options.kind;
  if (options.label_smoothing > 0 && !HasLabelSmoothing(kind)) {
    return InvalidArgument("label_smoothing is ", options.label_smoothing,
                           ", but only dpo, dpo_norm, robust, exo, cpo and simpo have it: set it "
                           "to 0, or choose one of these losses");
  }
  if (options.label_smoothing == 0 && kind == Kind::kExo) {
    return InvalidArgument(
        "label_smoothing is 0; exo needs the probability of the rejected completion: set "
        "label_smoothing, 0.001 in the paper");
  }
  if (options.rpo_alpha > 0 && (kind == Kind::kKto || kind == Kind::kCpo || kind == Kind::kOrpo)) {
    return InvalidArgument("rpo_alpha is ", options.rpo_alpha,
                           ", but kto has no such term, cpo has cpo_alpha and orpo has it always: "
                           "set rpo_alpha to 0");
  }
  if (options.ld_alpha < 1 && NeedsLabels(kind)) {
    return InvalidArgument("ld_alpha is ", options.ld_alpha,
                           ", but kto has no pair whose lengths could be compared: set it to 1");
  }
  const PreferenceLossOptions unset;
  const struct {
    const char* name;
    double value, default_value;
    bool has_it;
    const char* owner;
  } own[] = {{"cpo_alpha", options.cpo_alpha, unset.cpo_alpha, kind == Kind::kCpo, "cpo"},
             {"simpo_gamma", options.simpo_gamma, unset.simpo_gamma, kind == Kind::kSimpo, "simpo"},
             {"desirable_weight", options.desirable_weight, unset.desirable_weight,
              NeedsLabels(kind), "kto"},
             {"undesirable_weight", options.undesirable_weight, unset.undesirable_weight,
              NeedsLabels(kind), "kto"}};
  for (const auto& option : own) {
    if (option.has_it || option.value == option.default_value) continue;
    return InvalidArgument(option.name, " is ", option.value, ", but only ", option.owner,
                           " has it: leave it out, or choose ", option.owner);
  }
  if (has_margins && !HasMargin(kind)) {
    return InvalidArgument(
        "the data has margins, which only dpo, dpo_norm, dpo_hinge, robust, cpo and simpo have a "
        "place for: leave the margins out, or choose one of these losses");
  }
  return absl::OkStatus();
}

}  // namespace tandem::trainer
