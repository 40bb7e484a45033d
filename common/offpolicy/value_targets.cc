#include "common/offpolicy/value_targets.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/offpolicy/correction.h"
#include "common/statistics/sample_statistics.h"

namespace tandem::offpolicy {
namespace {

double Ratio(double log_ratio) {
  if (!std::isfinite(log_ratio)) return 0;
  return std::exp(std::clamp(log_ratio, -kMaxLogRatio, kMaxLogRatio));
}

// One completion, its arrays and what both recursions read.
struct Recursion {
  const TrajectoryInputs& in;
  const ValueTargetOptions& options;
  const double lambda;

  size_t size() const { return in.rewards.size(); }
  double NextValue(size_t t) const { return t + 1 < size() ? in.values[t + 1] : in.bootstrap; }
  double Delta(size_t t) const {
    return in.rewards[t] + options.gamma * NextValue(t) - in.values[t];
  }
  double Rho(size_t t) const { return std::min(options.max_rho, Ratio(in.log_ratios[t])); }
  double Trace(size_t t) const { return std::min(options.max_c, Ratio(in.log_ratios[t])); }
};

std::vector<double> GaeAdvantages(const Recursion& r, double lambda) {
  std::vector<double> advantages(r.size());
  double next = 0;
  for (size_t t = r.size(); t-- > 0;) {
    next = r.Delta(t) + r.options.gamma * lambda * next;
    advantages[t] = next;
  }
  return advantages;
}

ValueTargets Gae(const Recursion& r) {
  const double of_critic = r.options.critic_lambda < 0 ? r.lambda : r.options.critic_lambda;
  ValueTargets result{GaeAdvantages(r, r.lambda), GaeAdvantages(r, of_critic)};
  for (size_t t = 0; t < r.size(); ++t) result.targets[t] += r.in.values[t];
  return result;
}

ValueTargets Vtrace(const Recursion& r) {
  ValueTargets result{std::vector<double>(r.size()), std::vector<double>(r.size())};
  double correction = 0;                // target - value of the state after token t
  double next_target = r.in.bootstrap;  // of the state after token t
  for (size_t t = r.size(); t-- > 0;) {
    result.advantages[t] = r.in.rewards[t] + r.options.gamma * next_target - r.in.values[t];
    correction = r.Rho(t) * r.Delta(t) + r.options.gamma * r.lambda * r.Trace(t) * correction;
    next_target = r.in.values[t] + correction;
    result.targets[t] = next_target;
  }
  return result;
}

ValueTargets Retrace(const Recursion& r) {
  ValueTargets result{std::vector<double>(r.size()), std::vector<double>(r.size())};
  for (size_t t = r.size(); t-- > 0;) {
    const bool last = t + 1 == r.size();
    const double after = last ? 0 : r.lambda * r.Trace(t + 1) * result.advantages[t + 1];
    result.advantages[t] = r.Delta(t) + r.options.gamma * after;
    result.targets[t] = r.in.values[t] + r.Trace(t) * result.advantages[t];
  }
  return result;
}

}  // namespace

void BindOptions(OptionBinder& binder, ValueTargetOptions& options) {
  binder.Number("gamma", &options.gamma, {.min = 0, .max = 1}, "",
                "discount per token, of a critic's returns and of rewards that come per token");
  binder.Number("lambda", &options.lambda, {.min = 0, .max = 1}, "",
                "gae, vtrace, retrace: 0 trusts the critic alone, 1 the sampled rewards alone");
  binder.Number("critic_lambda", &options.critic_lambda, {.min = -1, .max = 1}, "",
                "gae: lambda of the critic's targets (VAPO: 1); negative: as lambda");
  binder.Number("length_adaptive_alpha", &options.length_adaptive_alpha, {.min = 0}, "",
                "over 0: lambda of a completion of T tokens is 1 - 1 / (this x T) (VAPO: 0.05)");
  binder.Number(
      "max_rho", &options.max_rho, {.min = 0, .exclusive_min = true}, "",
      "vtrace: truncation of proximal/behaviour in the target (rho-bar); it decides which "
      "policy the value is of");
  binder.Number("max_c", &options.max_c, {.min = 0}, "",
                "vtrace, retrace: truncation of the traces (c-bar); how far rewards travel back");
}

absl::Status CheckOptions(const ValueTargetOptions& options) {
  if (options.max_c <= options.max_rho) return absl::OkStatus();
  return InvalidArgument("advantage.max_c is ", options.max_c, ", over advantage.max_rho ",
                         options.max_rho, ": V-trace is a contraction for max_c <= max_rho only");
}

ValueTargets ComputeValueTargets(const TrajectoryInputs& inputs, ValueEstimator estimator,
                                 const ValueTargetOptions& options) {
  TANDEM_CHECK(inputs.values.size() == inputs.rewards.size());
  double lambda = options.lambda;
  if (options.length_adaptive_alpha > 0) {
    const auto length = static_cast<double>(inputs.rewards.size());
    lambda = std::max(0.0, 1 - 1 / (options.length_adaptive_alpha * length));
  }
  const Recursion recursion{inputs, options, lambda};
  if (estimator == ValueEstimator::kGae) return Gae(recursion);
  TANDEM_CHECK(inputs.log_ratios.size() == inputs.rewards.size());
  return estimator == ValueEstimator::kVtrace ? Vtrace(recursion) : Retrace(recursion);
}

std::vector<double> ReturnsToGo(std::span<const double> rewards, double gamma) {
  std::vector<double> returns(rewards.size());
  double next = 0;
  for (size_t t = rewards.size(); t-- > 0;) {
    next = rewards[t] + gamma * next;
    returns[t] = next;
  }
  return returns;
}

double ExplainedVariance(std::span<const double> values, std::span<const double> targets) {
  TANDEM_CHECK(values.size() == targets.size());
  std::vector<double> errors(targets.size());
  for (size_t t = 0; t < targets.size(); ++t) errors[t] = targets[t] - values[t];
  const double spread = SquaredDeviations(targets);
  if (spread == 0) return std::numeric_limits<double>::quiet_NaN();
  return 1 - SquaredDeviations(errors) / spread;
}

}  // namespace tandem::offpolicy
