// DeliveryTrend: does a server run what it was pushed? A regression over the pushes of a run
// (docs/attribution.md). Pure.
//
// At equal weights the two sides differ by rounding alone, whose size does not depend on how far
// training went. A tensor that never arrives stays at its first value, so to first order its gap
// grows with the distance from the initial weights, whatever the push interval; one that arrives a
// push late has the gap of that push. The mean square of the gap, not its root, is regressed on
// squared distances: independent errors add up in squares, so the noise is the intercept; the root
// would bend around it.
//
//   y(v) = noise + a ||theta_v - theta_0||^2 + b ||theta_v - theta_(v-1)||^2
#ifndef TANDEM_COMMON_DRIFT_DELIVERY_TREND_H_
#define TANDEM_COMMON_DRIFT_DELIVERY_TREND_H_

#include <cstdint>
#include <span>
#include <vector>

#include "common/statistics/cluster_bootstrap.h"

namespace tandem::offpolicy {

// The fewest pushes a trend is fitted to.
inline constexpr int64_t kLeastPushes = 5;

// The probe under one version of the weights, by one server.
struct ProbedPush {
  int64_t version = 0;
  double distance = 0;       // ||theta_v - theta_0||
  double push_distance = 0;  // ||theta_v - theta_(v-1)||; NaN: unknown, and the push is left out
  std::vector<double>
      squares;  // [S] sum of (trainer - server)^2 over a completion's tokens, both under theta_v
};

struct DeliveryTrend {
  int64_t num_pushes = 0;  // that were fitted
  Interval square;         // mean square of the gap at the last push
  double floor =
      0;  // the same at the push nearest to the initial weights: the noise of the two engines
  // What of `square` goes with the distance from the initial weights: a ||theta_v - theta_0||^2 at
  // the last push. Value NaN with fewer than kLeastPushes, or when distances cannot be told from
  // each other.
  Interval undelivered;
  Interval late;  // what goes with the last push: b ||theta_v - theta_(v-1)||^2
};

// `num_tokens` [S] of each completion. Intervals are over completions.
DeliveryTrend FitDeliveryTrend(std::span<const ProbedPush> pushes,
                               std::span<const double> num_tokens,
                               const BootstrapOptions& options = {});

}  // namespace tandem::offpolicy

#endif  // TANDEM_COMMON_DRIFT_DELIVERY_TREND_H_
