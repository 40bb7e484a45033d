// PolicyLossOptions: options of stage 7. They stand apart from policy_loss.h so that code which
// only reads options stays free of LibTorch.
#pragma once

#include "common/offpolicy/objective_options.h"
#include "common/options/options.h"
#include "trainer/preferences/preference_loss_options.h"

namespace tandem::trainer {

// Estimators of KL(target || reference) from tokens the target drew; d = log target - log
// reference.
//   k1 = d, k2 = d^2 / 2, k3 = e^-d - 1 + d
// As a loss on tokens the target itself drew their expected gradients are 0 (k1), that of the
// reverse KL (k2), and that of the forward KL (k3). Subtracted from the reward, only k1 has the
// gradient of the reverse KL (trainer/advantages/batch_advantages.h). kAuto is k3 in the loss and k1 in the reward.
enum class KlEstimator { kAuto, kK1, kK2, kK3 };

// Where that KL is charged: as a term of the loss, or taken off the reward of the completion or of
// each token (trainer/advantages/batch_advantages.h).
enum class KlPlace { kLoss, kReward, kTokenReward };
constexpr bool IsInReward(KlPlace place) { return place != KlPlace::kLoss; }

// Whether the coefficient of that KL stays, or follows kl_target (kl_controller.h).
enum class KlControl { kFixed, kAdaptive };

struct PolicyLossOptions {
  offpolicy::ObjectiveOptions objective;  // the policy term, and what all is divided by
  double kl_coefficient = 0;              // of the KL to the frozen reference; 0: off
  KlPlace kl_place = KlPlace::kLoss;
  KlEstimator kl_estimator = KlEstimator::kAuto;
  bool kl_ratio_weighted = false;  // times target / behaviour: see ReferenceKl
  KlControl kl_control = KlControl::kFixed;
  double kl_target = 6, kl_horizon = 10000;  // of kAdaptive; nats and completions
  double penalty_target = 0.01;              // of loss.kind penalty; nats of a token
  double entropy_coefficient = 0;            // of the entropy bonus
  PreferenceLossOptions preference;          // of loss.kind preference
};
void BindOptions(OptionBinder& binder, PolicyLossOptions& options);

// Whether the loss is of pairs.
constexpr bool ReadsPairs(const PolicyLossOptions& options) {
  return options.objective.kind == offpolicy::ObjectiveKind::kPreference;
}

// Whether the loss compares with a reference policy.
constexpr bool NeedsReference(const PolicyLossOptions& options) {
  return options.kl_coefficient > 0 ||
         (ReadsPairs(options) && NeedsReference(options.preference.kind));
}

}  // namespace tandem::trainer
