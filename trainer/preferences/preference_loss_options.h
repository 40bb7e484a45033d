// PreferenceLossOptions: which loss of preference learning, and its numbers. They stand apart from
// preference_loss.h so that code which only reads options can include them without its formulas.
#pragma once

#include "absl/status/status.h"
#include "common/options/options.h"

namespace tandem::trainer {

// preference_loss.h has the formulas and their sources.
enum class PreferenceLossKind {
  kDpo,
  kDpoNorm,
  kDpoHinge,
  kIpo,
  kRobust,
  kExo,
  kApoZero,
  kApoDown,
  kCpo,
  kSimpo,
  kOrpo,
  kKto
};

// Whether the loss compares with a frozen reference policy.
constexpr bool NeedsReference(PreferenceLossKind kind) {
  return kind != PreferenceLossKind::kCpo && kind != PreferenceLossKind::kSimpo &&
         kind != PreferenceLossKind::kOrpo;
}

// Whether the loss reads single completions with a label (KTO) instead of pairs.
constexpr bool NeedsLabels(PreferenceLossKind kind) { return kind == PreferenceLossKind::kKto; }

struct PreferenceLossOptions {
  PreferenceLossKind kind = PreferenceLossKind::kDpo;
  double beta = 0;             // 0: the default of the loss (Beta)
  double label_smoothing = 0;  // share of labels that may be flipped
  double ld_alpha = 1;         // weight of tokens beyond the length of the shorter completion
  double rpo_alpha = 0;        // weight of the negative log-likelihood of the chosen completion
  double cpo_alpha = 1;        // the same for cpo
  double simpo_gamma = 0.5;    // target margin of simpo, in units of its reward
  double desirable_weight = 1, undesirable_weight = 1;  // of kto
};
void BindOptions(OptionBinder& binder, PreferenceLossOptions& options);

// The coefficient beta: options.beta, or 2 for simpo and 0.1 for the others. These are the defaults
// of the authors of SimPO (TRL has 0.1) and of TRL.
double Beta(const PreferenceLossOptions& options);

// The weight of the mean negative log-likelihood of the chosen completions: cpo_alpha for cpo, 1
// for orpo, rpo_alpha otherwise.
double NllWeight(const PreferenceLossOptions& options);

// Checks what the range of a single field cannot express. `has_margins`: whether the data has
// margins that are to be used.
//   INVALID_ARGUMENT  label_smoothing for a loss without it, or 0 for exo, whose target
//                     distribution would have a logarithm of 0; rpo_alpha for kto, cpo or orpo;
//                     ld_alpha below 1 for kto, which has no pair to compare lengths in; an option
//                     of cpo, simpo or kto for another loss; margins for a loss that has no place
//                     for them
absl::Status CheckOptions(const PreferenceLossOptions& options, bool has_margins);

}  // namespace tandem::trainer
