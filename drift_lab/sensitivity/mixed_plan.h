// ChooseMixedPlan: which matrices to quantise so that the mismatch stays within a budget: greedy, from
// what each costs alone, then checked against what the whole costs. Pure but for the caller's
// measurement.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace tandem::drift {

// A matrix that may be quantised, and what that costs alone.
struct PlaceCost {
  std::string place;        // a key of engine.weights_by_layer: "3.down_proj", "head"
  double k3 = 0;            // nats: of the engine with this matrix quantised and no other
  int64_t saved_bytes = 0;  // of its weights
};

struct MixedPlan {
  std::vector<size_t> quantised;  // indices of the places, in the order in which they were chosen
  double estimated_k3 = 0;        // the sum of their costs
  double measured_k3 = 0;         // of all of them together
  int64_t saved_bytes = 0;
  int64_t num_measurements = 0;
};

// k3 of an engine that quantises these places.
using MeasureTogether = absl::FunctionRef<absl::StatusOr<double>(const std::vector<size_t>&)>;

// Takes places by the bytes they save for each nat of k3, most first, and keeps the longest such
// beginning whose measured k3 is at most `budget`: errors of different matrices are nearly
// independent, so their k3 nearly add up, and the sum says where to look; the boundary is then found
// by bisection over measurements, at most log2(places) + 1 of them.
//   any error of `measure`
absl::StatusOr<MixedPlan> ChooseMixedPlan(const std::vector<PlaceCost>& places, double budget,
                                          MeasureTogether measure);

}  // namespace tandem::drift
