// ProbeDrift: the drift between trainer and servers on a fixed set of completions, and how the
// drift on fresh completions splits into that and an effect of their being new
// (docs/attribution.md). Pure.
//
//   fresh drift = probe drift + visitation shift
//
// The tokens of the probe are always the same, so a change of its drift is a change of the two
// sides. The visitation shift is the rest: the policy reaches states where the sides differ more,
// or the record is not what the servers compute.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/statistics/cluster_bootstrap.h"

namespace tandem::offpolicy {

// Log-probs of the probe's tokens [T] by one server under one version, and the weight of that
// server.
struct ServerScores {
  std::span<const float> logprobs;
  double share = 1;
};

// Metrics of delta = trainer - server, defined as the drift metrics of the same names; `square` is
// mean(delta^2).
struct ProbeDrift {
  Interval k1, k3, mean_abs_delta, square;
  int64_t num_tokens = 0;   // tokens that all scorers have
  int64_t num_missing = 0;  // tokens for which some scorer has no finite log-prob
};

// `completion` [T] is the index of each token's completion, from 0. The intervals resample
// completions, so the scores of several servers stay together; they are mixed by their shares,
// which add up to 1.
ProbeDrift ComputeProbeDrift(std::span<const int32_t> completion, std::span<const float> trainer,
                             std::span<const ServerScores> servers,
                             const BootstrapOptions& options = {});

// The sum of delta^2 over each completion, [S]; NaN where a log-prob is not finite.
std::vector<double> SquareSums(std::span<const int32_t> completion, int64_t num_completions,
                               std::span<const float> trainer, std::span<const float> server);

// The interval of a - b for independent samples: each bound is the root of the sum of the two
// squared distances behind it (MOVER; Zou and Donner 2008). Unknown if either interval is.
Interval IntervalOfDifference(const Interval& a, const Interval& b);

}  // namespace tandem::offpolicy
