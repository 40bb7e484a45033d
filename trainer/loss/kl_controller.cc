#include "trainer/loss/kl_controller.h"

#include <algorithm>
#include <cmath>

namespace tandem::trainer {

double ProportionalCoefficient(double coefficient, double kl, double target,
                               int64_t num_completions, double horizon) {
  if (!std::isfinite(kl)) return coefficient;
  const double error = std::clamp(kl / target - 1, -0.2, 0.2);
  return coefficient * (1 + error * static_cast<double>(num_completions) / horizon);
}

double DoublingCoefficient(double coefficient, double kl, double target) {
  if (kl < target / 1.5) return coefficient / 2;
  return kl > target * 1.5 ? coefficient * 2 : coefficient;
}

}  // namespace tandem::trainer
