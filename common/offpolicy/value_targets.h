// ValueTargets: what a critic makes of the rewards of a completion: the advantage of each token,
// and the target that the value of the state before it is trained on (between stages 5 and 6). Pure
// functions over plain spans in fp64; results are numbers, so no gradient goes through them.
// docs/algorithms.md says which estimator to use when.
//
// Index convention: element t is about token t given the tokens before it. v_t is the value of the
// state before token t, r_t the reward that comes with token t. v_T is the state after the last
// token: 0 where the completion ended by itself, the critic's value where it was truncated.
//
//   delta_t = r_t + gamma v_{t+1} - v_t,   ratio_t = pi_proximal / pi_behaviour
//   rho_t   = min(max_rho, ratio_t),       c_t = lambda min(max_c, ratio_t)
//
//   gae      A_t = delta_t + gamma lambda A_{t+1};  target_t = v_t + A_t, with critic_lambda
//            (Schulman et al. 2016, arXiv 1506.02438; decoupled lambdas: VAPO, arXiv 2504.05118)
//   vtrace   target_t = v_t + rho_t delta_t + gamma c_t (target_{t+1} - v_{t+1});
//            A_t = r_t + gamma target_{t+1} - v_t  (IMPALA, Espeholt et al. 2018, arXiv 1802.01561)
//   retrace  A_t = delta_t + gamma c_{t+1} A_{t+1};  target_t = v_t + min(max_c, ratio_t) A_t
//            (the traces of Munos et al. 2016, arXiv 1606.02647, who state them for action values)
//
// The fixed point of vtrace is the value of the policy proportional to min(max_rho mu, pi), that of
// retrace the same with max_c: a state-value critic cannot have the value of pi itself without
// ratios of any size.
//
// The loss multiplies advantages by the weight of stage 6, which is IMPALA's rho_t in the policy
// gradient: the advantages here leave it out, so that no token is weighted twice. On-policy, all
// ratios 1, retrace is gae. With lambda 1 and max_rho = max_c, the targets of vtrace and retrace are
// equal.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/options/options.h"

namespace tandem::offpolicy {

enum class ValueEstimator { kGae, kVtrace, kRetrace };

struct ValueTargetOptions {
  double gamma = 1;
  double lambda = 0.95;
  double critic_lambda = -1;         // of the targets of gae; negative: lambda
  double length_adaptive_alpha = 0;  // > 0: lambda = 1 - 1 / (alpha T) for a completion of T tokens
  double max_rho = 1, max_c = 1;     // rho-bar and c-bar
};
// gamma, lambda, critic_lambda, length_adaptive_alpha, max_rho and max_c.
void BindOptions(OptionBinder& binder, ValueTargetOptions& options);

//   INVALID_ARGUMENT  max_c over max_rho, for which V-trace does not contract; messages name fields
//                     under "advantage."
absl::Status CheckOptions(const ValueTargetOptions& options);

// One completion; all [T], parallel.
struct TrajectoryInputs {
  std::span<const double> rewards;
  std::span<const double> values;
  double bootstrap = 0;  // v_T
  // log pi_proximal - log pi_behaviour; read for vtrace and retrace. Through a token whose ratio is
  // not finite nothing is learned: its rho and c are 0.
  std::span<const double> log_ratios = {};
};

struct ValueTargets {
  std::vector<double> advantages;  // [T]
  std::vector<double> targets;     // [T]
};

ValueTargets ComputeValueTargets(const TrajectoryInputs& inputs, ValueEstimator estimator,
                                 const ValueTargetOptions& options);

// sum over s >= t of gamma^(s-t) rewards[s], [T]: the return from each token on.
std::vector<double> ReturnsToGo(std::span<const double> rewards, double gamma);

// 1 - Var(targets - values) / Var(targets): 1 for a critic that is right, 0 for one that knows no
// more than the mean. NaN where all targets are equal.
double ExplainedVariance(std::span<const double> values, std::span<const double> targets);

}  // namespace tandem::offpolicy
