#include "trainer/loss/policy_loss_options.h"

namespace tandem::trainer {

void BindOptions(OptionBinder& binder, PolicyLossOptions& options) {
  offpolicy::BindOptions(binder, options.objective);
  binder.Number("kl_coefficient", &options.kl_coefficient, {.min = 0}, "",
                "weight of the KL to the frozen starting model; 0: none");
  binder.Choice("kl_place", &options.kl_place,
                {{"loss", KlPlace::kLoss},
                 {"reward", KlPlace::kReward},
                 {"token_reward", KlPlace::kTokenReward}},
                "where it is charged: a term of the loss; taken off each completion's reward after "
                "the rewards were normalised; or taken off each token's reward, so that a token "
                "pays for itself and what follows it");
  binder.Choice("kl_estimator", &options.kl_estimator,
                {{"auto", KlEstimator::kAuto},
                 {"k1", KlEstimator::kK1},
                 {"k2", KlEstimator::kK2},
                 {"k3", KlEstimator::kK3}},
                "of that KL; auto: k3 in the loss, k1 in the reward. In the loss, k1 without "
                "kl_ratio_weighted has no expected gradient; in the reward, k2 and k3 do not hold "
                "the policy to its reference and are refused");
  binder.Flag(
      "kl_ratio_weighted", &options.kl_ratio_weighted,
      "weight the estimator by target/behaviour: gradient of the reverse KL off-policy too");
  binder.Choice("kl_control", &options.kl_control,
                {{"fixed", KlControl::kFixed}, {"adaptive", KlControl::kAdaptive}},
                "with the KL in the reward: kl_coefficient stays, or rises while the KL of a "
                "completion is over kl_target and falls while it is under");
  binder.Number("kl_target", &options.kl_target, {.min = 0, .exclusive_min = true}, "nats",
                "kl_control adaptive: KL of a completion to hold");
  binder.Number("kl_horizon", &options.kl_horizon, {.min = 1}, "completions",
                "kl_control adaptive: over so many the coefficient may change by a fifth");
  binder.Number("penalty_target", &options.penalty_target, {.min = 0, .exclusive_min = true},
                "nats",
                "kind penalty: the coefficient doubles after a step whose KL(proximal || target) "
                "per token was over 1.5 times this, and halves under a 1.5th");
  binder.Number("entropy_coefficient", &options.entropy_coefficient, {.min = 0}, "",
                "weight of the entropy of the sampling distribution as a bonus; 0: none");
  binder.Section("preference", "kind preference: the loss of a pair", options.preference);
}

}  // namespace tandem::trainer
