#include "trainer/metrics/alerts.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tandem::trainer {
namespace {

using offpolicy::Interval;

// The share of completions; a single answer may well be too long.
constexpr double kMostOutOfTokens = 0.25;

// One check of a step: what was measured, against what, and what to say.
class Checks {
 public:
  explicit Checks(const MetricsLine& line) : line_(line) {}

  Interval Read(const std::string& name) const { return line_.GetInterval(name); }
  double Value(const std::string& name) const { return Read(name).value; }

  void Raise(bool condition, Alert alert) {
    if (condition) alerts_.push_back(std::move(alert));
  }
  void RaiseAbove(const std::string& name, const Interval& measured, double threshold,
                  const std::string& diagnosis) {
    Raise(IsAbove(measured, threshold), {name, measured, threshold, diagnosis});
  }
  void RaiseBelow(const std::string& name, const Interval& measured, double threshold,
                  const std::string& diagnosis) {
    Raise(IsBelow(measured, threshold), {name, measured, threshold, diagnosis});
  }
  std::vector<Alert> Take() { return std::move(alerts_); }

 private:
  const MetricsLine& line_;
  std::vector<Alert> alerts_;
};

// A server that agrees better with an earlier version is late, unless that is the first one: then
// nothing arrived.
void CheckDelivery(double factor, Checks& checks) {
  const double served = checks.Value("drift/probe/version") - checks.Value("drift/probe/lag");
  const Interval behind = checks.Read("drift/delivery/behind");
  const Interval square = checks.Read("drift/delivery/square");
  if (behind.value > 0 && behind.value < served &&
      IsAbove(square, factor * checks.Value("drift/delivery/nearest_square"))) {
    checks.Raise(true,
                 {"late_delivery", behind, 0,
                  "a server computes with weights that many versions older than it says: a push "
                  "that was acknowledged and not installed"});
    return;
  }
  const Interval undelivered = checks.Read("drift/delivery/undelivered");
  if (!undelivered.known()) return;
  checks.RaiseAbove(
      "non_delivery", undelivered, factor * checks.Value("drift/delivery/floor"),
      "the probe's gap at equal weights grows with the distance from the initial "
      "weights: a server keeps some tensor at its first value (a tied head, a buffer, "
      "a copy no push reaches); find it with tandem drift attribute");
}

void CheckDrift(const AlertOptions& options, Checks& checks) {
  const double guard = options.drift_guard;
  if (guard > 0 && checks.Value("staleness/max") == 0) {
    checks.RaiseAbove("drift_guard", checks.Read("drift/mean_abs_delta"), guard,
                      "both processes should run the same model: compare dtype, rope and norm "
                      "settings, temperature, chat template, and push/arrived_share");
  }
  if (guard > 0 && checks.Value("drift/probe/lag") == 0) {
    checks.RaiseAbove("probe_drift", checks.Read("drift/probe/mean_abs_delta"), guard,
                      "trainer and servers disagree about tokens that have not changed since the "
                      "run began: the two sides moved apart, not the policy to other places");
  }
  if (guard > 0 && checks.Value("staleness/max") == 0) {
    checks.RaiseAbove("visitation_shift", checks.Read("drift/visitation/mean_abs_delta"), guard,
                      "the step's tokens drift more than the probe set: the policy visits places "
                      "where the sides differ, or what servers record is not what they compute "
                      "(drift/split/record_mean_abs tells)");
  }
  if (options.delivery_factor > 0) CheckDelivery(options.delivery_factor, checks);
}

// Does the objective hold the ratio in a band around 1, which updates of a working run leave now
// and then? sapo and vespo have no bound to count, and the ceilings and masks of the others may
// rightly never act.
bool ClipsAroundOne(offpolicy::ObjectiveKind objective) {
  return objective == offpolicy::ObjectiveKind::kClip ||
         objective == offpolicy::ObjectiveKind::kGspo;
}

void CheckRatio(const AlertOptions& options, bool bypass, Checks& checks) {
  const Interval ratio = checks.Read("loss/ratio_mean");
  const std::string diagnosis =
      bypass ? "in mode bypass the ratio is target / behaviour, so before the first update it is "
               "the gap between trainer and servers: look at drift/mean_abs_delta and "
               "staleness/mean, and ask tandem drift attribute for its parts"
             : "before the first update target and proximal weights are the same: look for "
               "dropout, a wrong shift, or log-probs of other tokens";
  checks.Raise(options.ratio_guard > 0 && checks.Value("loss/num_updates") == 1 &&
                   std::abs(ratio.value - 1) > options.ratio_guard,
               {"ratio_far_from_one", ratio, options.ratio_guard, diagnosis});
}

void CheckLoss(const AlertOptions& options, const LossKind& loss, Checks& checks) {
  CheckRatio(options, loss.bypass, checks);
  const Interval clipped{.value = checks.Value("loss/clip_low_share") +
                                  checks.Value("loss/clip_high_share")};
  checks.Raise(
      checks.Value("loss/num_updates") > 1 && clipped.value == 0 && ClipsAroundOne(loss.objective),
      {"clip_never_acts", clipped, 0,
       "with several updates some ratio should leave the clip range: the proximal "
       "log-probs may be recomputed per update, or the learning rate be tiny"});
  checks.RaiseAbove("clip_share_high", clipped, options.clip_share_max,
                    "updates are too large: lower the learning rate or the updates per step");
  const Interval kl = checks.Read("kl_reference/k3");
  checks.Raise(options.kl_budget > 0 && IsAbove(kl, options.kl_budget),
               {"kl_over_budget", kl, options.kl_budget,
                "the policy left the reference: look at samples for reward hacking, raise "
                "the KL coefficient or stop",
                options.on_kl != OnKl::kWarn, options.on_kl == OnKl::kRollBack});
}

}  // namespace

void BindOptions(OptionBinder& binder, AlertOptions& options) {
  binder.Number("drift_guard", &options.drift_guard, {.min = 0}, "nats",
                "alert when mean abs(delta) is above: of a step at staleness 0, of the probe set, "
                "or of what visited tokens add to it; 0: off");
  binder.Number(
      "delivery_factor", &options.delivery_factor, {.min = 0}, "",
      "alert when the part of the probe's squared gap that grows with the distance from the "
      "initial weights is above so many times the squared gap at them, or an earlier version "
      "fits so many times better; 0: off");
  binder.Number("ratio_guard", &options.ratio_guard, {.min = 0}, "",
                "alert when the mean ratio of a step with one update is further from 1; 0: off");
  binder.Number("clip_share_max", &options.clip_share_max, {.min = 0, .max = 1}, "",
                "alert when more tokens than this are clipped");
  binder.Number("kl_budget", &options.kl_budget, {.min = 0}, "nats",
                "alert when k3 to the reference policy is above; 0: off. Needs "
                "measure_reference_kl or loss.kl_coefficient");
  binder.Choice("on_kl", &options.on_kl,
                {{"warn", OnKl::kWarn}, {"stop", OnKl::kStop}, {"roll_back", OnKl::kRollBack}},
                "when kl_budget is exceeded: go on; end the run; or end it with the weights of its "
                "best checkpoint within the budget, by held-out gold or evaluation");
  binder.Number("reward_std_min", &options.reward_std_min, {.min = 0}, "",
                "alert when rewards of a step differ less");
  binder.Number("entropy_min", &options.entropy_min, {.min = 0}, "nats",
                "alert when the mean entropy of the policy is below");
  binder.Number("changed_share_min", &options.changed_share_min, {.min = 0, .max = 1}, "",
                "alert when a push changed a smaller share of the elements");
  binder.Number("arrived_share_min", &options.arrived_share_min, {.min = 0, .max = 1}, "",
                "alert when a smaller share of the update survived the cast of a push");
}

bool IsAbove(const Interval& measured, double threshold) {
  return (measured.known() ? measured.low : measured.value) > threshold;
}

bool IsBelow(const Interval& measured, double threshold) {
  return (measured.known() ? measured.high : measured.value) < threshold;
}

std::vector<Alert> CheckAlerts(const MetricsLine& line, const AlertOptions& options,
                               const LossKind& loss) {
  Checks checks(line);
  CheckDrift(options, checks);
  CheckLoss(options, loss, checks);
  checks.RaiseBelow("reward_std_near_zero", checks.Read("reward/std"), options.reward_std_min,
                    "all completions are worth the same: the task is solved, too hard, or the "
                    "reward does not see the answer");
  checks.RaiseAbove("environment_out_of_tokens",
                    checks.Read("reward/part/environment/out_of_tokens"), kMostOutOfTokens,
                    "what the environment says has no room behind the turn: raise "
                    "trainer.environment.max_completion_tokens, or shorten its answers");
  checks.RaiseBelow("entropy_collapse", checks.Read("loss/entropy"), options.entropy_min,
                    "the policy hardly explores: lower the learning rate, raise eps_high, or "
                    "stop here");
  if (checks.Value("push/update_norm") > 0) {
    checks.RaiseBelow(
        "push_changed_nothing", checks.Read("push/changed_share"), options.changed_share_min,
        "the update is too small to show at the server's dtype: see "
        "push/arrived_share; where that is 1, the gradient norm and the learning rate");
  }
  checks.RaiseBelow("push_swallows_update", checks.Read("push/arrived_share"),
                    options.arrived_share_min,
                    "the trainer learns and its servers do not follow: use trainer.push.rounding "
                    "dither, or fp32 servers");
  return checks.Take();
}

std::string Describe(const Alert& alert) {
  const Interval& measured = alert.measured;
  const std::string bounds =
      measured.known() ? absl::StrCat(" [", measured.low, ", ", measured.high, "]") : "";
  return absl::StrCat(alert.name, " is ", measured.value, bounds, ", threshold ", alert.threshold);
}

}  // namespace tandem::trainer
