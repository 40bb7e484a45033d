#include "trainer/loss/policy_loss_options.h"

namespace tandem::trainer {

void BindOptions(OptionBinder& binder, PolicyLossOptions& options) {
  offpolicy::BindOptions(binder, options.objective);
  binder.Number("kl_coefficient", &options.kl_coefficient, {.min = 0}, "",
                "weight of the KL to the frozen starting model; 0: none");
  binder.Choice("kl_place", &options.kl_place,
                {{"loss", KlPlace::kLoss}, {"reward", KlPlace::kReward}},
                "where it is charged: a term of the loss, or taken off each completion's reward "
                "after the rewards were normalised");
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
}

}  // namespace tandem::trainer
