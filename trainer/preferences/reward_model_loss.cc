#include "trainer/preferences/reward_model_loss.h"

#include <cstddef>

#include "common/base/check.h"
#include "trainer/preferences/log_sigmoid.h"

namespace tandem::trainer {

void BindOptions(OptionBinder& binder, RewardModelLossOptions& options) {
  binder.Number("label_smoothing", &options.label_smoothing, {.min = 0, .max = 0.499}, "",
                "probability that a label is flipped");
  binder.Number("center_rewards_coefficient", &options.center_rewards_coefficient, {.min = 0}, "",
                "weight of the square of the sum of both rewards, which holds their mean near 0; "
                "0: off");
}

RewardModelLoss ComputeRewardModelLoss(const RewardPairs& pairs,
                                       const RewardModelLossOptions& options) {
  const size_t n = pairs.chosen.size();
  TANDEM_CHECK(pairs.rejected.size() == n);
  TANDEM_CHECK(pairs.margins.empty() || pairs.margins.size() == n);
  const double smoothing = options.label_smoothing;
  RewardModelLoss loss{std::vector<double>(n), std::vector<double>(n), std::vector<double>(n)};
  for (size_t i = 0; i < n; ++i) {
    const double margin = pairs.margins.empty() ? 0 : pairs.margins[i];
    const double d = pairs.chosen[i] - pairs.rejected[i] - margin;
    const double sum = pairs.chosen[i] + pairs.rejected[i];
    const double slope = -(1 - smoothing) * Sigmoid(-d) + smoothing * Sigmoid(d);
    const double centring = 2 * options.center_rewards_coefficient * sum;
    loss.value[i] = -(1 - smoothing) * LogSigmoid(d) - smoothing * LogSigmoid(-d) +
                    options.center_rewards_coefficient * sum * sum;
    loss.chosen_slope[i] = slope + centring;
    loss.rejected_slope[i] = -slope + centring;
  }
  return loss;
}

}  // namespace tandem::trainer
