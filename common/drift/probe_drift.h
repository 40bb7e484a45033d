// ProbeDrift: the gap between trainer and servers on a fixed set of completions, and how the gap on
// fresh ones splits into it and what is new about them (docs/attribution.md). Pure.
//
//   fresh drift = probe drift + visitation shift
//
// The probe's tokens are always the same, so its drift says what became of the two sides; the shift
// says what else the fresh tokens have: the policy visits places where the sides differ more, or
// the record is not what the servers compute.
#ifndef TANDEM_COMMON_DRIFT_PROBE_DRIFT_H_
#define TANDEM_COMMON_DRIFT_PROBE_DRIFT_H_

#include <cstdint>
#include <span>
#include <vector>

#include "common/statistics/cluster_bootstrap.h"

namespace tandem::offpolicy {

// Log-probs of the probe's tokens [T] by one server under one version, and the weight they have.
struct ServerScores {
  std::span<const float> logprobs;
  double share = 1;
};

// Of delta = trainer - server. As the drift metrics of these names; `square` is mean(delta^2).
struct ProbeDrift {
  Interval k1, k3, mean_abs_delta, square;
  int64_t num_tokens = 0;   // scored by all
  int64_t num_missing = 0;  // without a finite log-prob of some scorer
};

// `completion` [T]: number of each token's completion, 0 .. ; they are what intervals draw again,
// so scores of several servers (mixed by share; shares add up to 1) stay together.
ProbeDrift ComputeProbeDrift(std::span<const int32_t> completion, std::span<const float> trainer,
                             std::span<const ServerScores> servers,
                             const BootstrapOptions& options = {});

// Sum of delta^2 of each completion [S]; NaN where a log-prob is not finite.
std::vector<double> SquareSums(std::span<const int32_t> completion, int64_t num_completions,
                               std::span<const float> trainer, std::span<const float> server);

// Of a - b for independent samples: each bound moves by the distances of the two bounds behind it,
// added in squares (MOVER; Zou and Donner 2008). Unknown when one of them is.
Interval IntervalOfDifference(const Interval& a, const Interval& b);

}  // namespace tandem::offpolicy

#endif  // TANDEM_COMMON_DRIFT_PROBE_DRIFT_H_
