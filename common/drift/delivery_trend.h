// DeliveryTrend: tests whether a server runs the weights it was pushed, with a regression over the
// pushes of a run (docs/attribution.md). Pure.
//
// At equal weights, the two sides differ by rounding alone, and the size of that difference does
// not depend on how far training went. A tensor that never arrives keeps its first value, so to
// first order its share of the drift grows with the distance from the initial weights, whatever the
// push interval. A tensor that arrives one push late contributes the drift of that push. The
// regression is of the mean square of delta on squared distances: independent errors add up in
// squares, so the noise becomes the intercept. The root mean square would not be linear in the
// distances.
//
//   y(v) = noise + a ||theta_v - theta_0||^2 + b ||theta_v - theta_(v-1)||^2
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/statistics/cluster_bootstrap.h"

namespace tandem::offpolicy {

// The fewest pushes that a trend is fitted to.
inline constexpr int64_t kLeastPushes = 5;

// Results of the probe set for one server under one version of the weights.
struct ProbedPush {
  int64_t version = 0;
  double distance = 0;          // ||theta_v - theta_0||
  double push_distance = 0;     // ||theta_v - theta_(v-1)||; NaN: unknown, and the push is left out
  std::vector<double> squares;  // [S] sum over tokens of (trainer - server)^2, both under theta_v
};

struct DeliveryTrend {
  int64_t num_pushes = 0;  // pushes in the fit
  Interval square;         // mean square of delta at the last push
  double floor = 0;        // the same at the push closest to the initial weights: engine noise
  // The part of `square` explained by the distance from the initial weights: a ||theta_v -
  // theta_0||^2 at the last push. Its value is NaN with fewer than kLeastPushes pushes, or when the
  // distances are too similar to separate the terms.
  Interval undelivered;
  Interval late;  // the part explained by the last push: b ||theta_v - theta_(v-1)||^2
};

// `num_tokens` [S] is the number of tokens of each completion. Intervals come from resampling
// completions.
DeliveryTrend FitDeliveryTrend(std::span<const ProbedPush> pushes,
                               std::span<const double> num_tokens,
                               const BootstrapOptions& options = {});

}  // namespace tandem::offpolicy
