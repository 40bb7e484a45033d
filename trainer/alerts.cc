#include "trainer/alerts.h"

#include <cmath>
#include <limits>

namespace tandem::trainer {
namespace {

constexpr double kAbsent = std::numeric_limits<double>::quiet_NaN();

}  // namespace

void BindOptions(OptionBinder& binder, AlertOptions& options) {
  binder.Number("drift_guard", &options.drift_guard, {.min = 0}, "nats",
                "alert when mean abs(delta) at staleness 0 is above; 0: off");
  binder.Number("ratio_guard", &options.ratio_guard, {.min = 0}, "",
                "alert when the mean ratio of a step with one update is further from 1; 0: off");
  binder.Number("clip_share_max", &options.clip_share_max, {.min = 0, .max = 1}, "",
                "alert when more tokens than this are clipped");
  binder.Number("kl_budget", &options.kl_budget, {.min = 0}, "nats",
                "alert when k3 to the reference policy is above; 0: off");
  binder.Flag("stop_on_kl", &options.stop_on_kl, "end the run when kl_budget is exceeded");
  binder.Number("reward_std_min", &options.reward_std_min, {.min = 0}, "",
                "alert when rewards of a step differ less");
  binder.Number("entropy_min", &options.entropy_min, {.min = 0}, "nats",
                "alert when the mean entropy of the policy is below");
  binder.Number("changed_share_min", &options.changed_share_min, {.min = 0, .max = 1}, "",
                "alert when a push changed a smaller share of the elements");
  binder.Number("arrived_share_min", &options.arrived_share_min, {.min = 0, .max = 1}, "",
                "alert when a smaller share of the update survived the cast of a push");
}

std::vector<Alert> CheckAlerts(const MetricsLine& line, const AlertOptions& options) {
  std::vector<Alert> alerts;
  const auto get = [&](const char* name) { return line.Get(name, kAbsent); };

  const double drift = get("drift/mean_abs_delta");
  if (options.drift_guard > 0 && get("staleness/max") == 0 && drift > options.drift_guard) {
    alerts.push_back({"drift_guard", drift, options.drift_guard,
                      "both processes should run the same model: compare dtype, rope and norm "
                      "settings, temperature, chat template, and push/arrived_share"});
  }
  const double updates = get("loss/num_updates");
  const double ratio = get("loss/ratio_mean");
  if (options.ratio_guard > 0 && updates == 1 && std::abs(ratio - 1) > options.ratio_guard) {
    alerts.push_back({"ratio_far_from_one", ratio, options.ratio_guard,
                      "before the first update target and proximal weights are the same: look for "
                      "dropout, a wrong shift, or log-probs of other tokens"});
  }
  const double clipped = get("loss/clip_low_share") + get("loss/clip_high_share");
  if (updates > 1 && clipped == 0) {
    alerts.push_back({"clip_never_acts", 0, 0,
                      "with several updates some ratio should leave the clip range: the proximal "
                      "log-probs may be recomputed per update, or the learning rate be tiny"});
  }
  if (clipped > options.clip_share_max) {
    alerts.push_back({"clip_share_high", clipped, options.clip_share_max,
                      "updates are too large: lower the learning rate or the updates per step"});
  }
  const double kl = get("kl_reference/k3");
  if (options.kl_budget > 0 && kl > options.kl_budget) {
    alerts.push_back({"kl_over_budget", kl, options.kl_budget,
                      "the policy left the reference: look at samples for reward hacking, raise "
                      "the KL coefficient or stop",
                      options.stop_on_kl});
  }
  const double reward_std = get("reward/std");
  if (reward_std < options.reward_std_min) {
    alerts.push_back({"reward_std_near_zero", reward_std, options.reward_std_min,
                      "all completions are worth the same: the task is solved, too hard, or the "
                      "reward does not see the answer"});
  }
  const double entropy = get("loss/entropy");
  if (entropy < options.entropy_min) {
    alerts.push_back({"entropy_collapse", entropy, options.entropy_min,
                      "the policy hardly explores: lower the learning rate, raise eps_high, or "
                      "stop here"});
  }
  const double changed = get("push/changed_share");
  if (get("push/update_norm") > 0 && changed < options.changed_share_min) {
    alerts.push_back(
        {"push_changed_nothing", changed, options.changed_share_min,
         "the update is too small to show at the server's dtype: see push/arrived_share; "
         "where that is 1, the gradient norm and the learning rate"});
  }
  const double arrived = get("push/arrived_share");
  if (arrived < options.arrived_share_min) {
    alerts.push_back({"push_swallows_update", arrived, options.arrived_share_min,
                      "the trainer learns and its servers do not follow: use trainer.push.rounding "
                      "dither, or fp32 servers"});
  }
  return alerts;
}

}  // namespace tandem::trainer
