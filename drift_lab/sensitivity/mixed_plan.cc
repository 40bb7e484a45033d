#include "drift_lab/sensitivity/mixed_plan.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "common/base/status_macros.h"

namespace tandem::drift {

absl::StatusOr<MixedPlan> ChooseMixedPlan(const std::vector<PlaceCost>& places, double budget,
                                          MeasureTogether measure) {
  std::vector<size_t> order(places.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // Cross-multiplied, for a place may cost nothing.
  std::ranges::stable_sort(order, [&](size_t a, size_t b) {
    return places[a].k3 * static_cast<double>(places[b].saved_bytes) <
           places[b].k3 * static_cast<double>(places[a].saved_bytes);
  });
  MixedPlan plan;
  std::map<size_t, double> measured = {{0, 0.0}};  // by the number of places
  const auto fits = [&](size_t count) -> absl::StatusOr<bool> {
    if (!measured.contains(count)) {
      TANDEM_ASSIGN_OR_RETURN(
          measured[count],
          measure(std::vector<size_t>(order.begin(), order.begin() + static_cast<int64_t>(count))));
      ++plan.num_measurements;
    }
    return measured[count] <= budget;
  };
  // The beginning that fits is at least `low` and below `high` places long. The estimate is the first
  // guess.
  size_t low = 0, high = order.size() + 1;
  double sum = 0;
  size_t guess = 0;
  while (guess < order.size() && sum + places[order[guess]].k3 <= budget) {
    sum += places[order[guess++]].k3;
  }
  for (size_t next = guess; high - low > 1; next = low + (high - low) / 2) {
    if (next <= low || next >= high) continue;
    TANDEM_ASSIGN_OR_RETURN(const bool does_fit, fits(next));
    (does_fit ? low : high) = next;
  }
  plan.quantised.assign(order.begin(), order.begin() + static_cast<int64_t>(low));
  for (const size_t place : plan.quantised) {
    plan.estimated_k3 += places[place].k3;
    plan.saved_bytes += places[place].saved_bytes;
  }
  plan.measured_k3 = measured[low];
  return plan;
}

}  // namespace tandem::drift
