// ObjectiveOptions: the options of the policy term of stage 7. They are separate from
// policy_objective.h so that option trees can include them without its code.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/offpolicy/correction_options.h"
#include "common/options/options.h"

namespace tandem::offpolicy {

// The divisor of the sum over tokens, always for the whole minibatch (ComputeLossScales).
//   kToken     the number of trained tokens; every token counts the same, so long completions count
//              more
//   kSequence  the mean over each completion, then over completions; tokens of short completions
//              count more
//   kConstant  completions x constant_length; no length bias, and independent of what was sampled
enum class Normalisation { kToken, kSequence, kConstant };

// policy_objective.h has the formulas.
enum class ObjectiveKind {
  kClip,
  kCispo,
  kTopr,
  kGspo,
  kSapo,
  kVespo,
  kM2po,      // mask, as in the paper
  kM2poClip,  // clip, as in the authors' repository
  kDppoTv,
  kDppoKl,
  kPenalty,
  kPolicyGradient,
  kPreference  // of pairs: trainer/loss/pair_objective.h
};

constexpr bool IsM2po(ObjectiveKind kind) {
  return kind == ObjectiveKind::kM2po || kind == ObjectiveKind::kM2poClip;
}

struct ObjectiveOptions {
  Normalisation normalisation = Normalisation::kToken;
  int64_t constant_length = 0;  // of kConstant; 0: the longest completion that may be sampled
  ObjectiveKind kind = ObjectiveKind::kClip;
  double clip_low = 0.2;   // eps_low
  double clip_high = 0.2;  // eps_high
  double dual_clip = 0;    // c > 1; 0: off
  double cispo_max = 5;    // bound on the ratio itself, not on its distance from 1
  double gspo_clip_low = 3e-4, gspo_clip_high = 4e-4;
  double sapo_tau_positive = 1, sapo_tau_negative = 1.05;
  double vespo_k_positive = 2, vespo_lambda_positive = 3;
  double vespo_k_negative = 3, vespo_lambda_negative = 2;
  double m2po_max = 0.04;
  double dppo_max_tv = 0.15, dppo_max_kl = 0.05;
  double penalty_coefficient = 1;  // beta of kPenalty
};
void BindOptions(OptionBinder& binder, ObjectiveOptions& options);

// Checks what the range of a single field cannot express; messages name fields under "loss." and
// "correction.".
//   INVALID_ARGUMENT  CheckOptions of the correction; dual_clip in (0, 1], or set for another
//                     kind; topr, vespo, m2po or m2po_clip, which weigh by target / behaviour
//                     themselves, in a mode other than bypass; kConstant without a length
absl::Status CheckOptions(const CorrectionOptions& correction, const ObjectiveOptions& objective);

}  // namespace tandem::offpolicy
