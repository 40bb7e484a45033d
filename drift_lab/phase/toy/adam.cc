#include "drift_lab/phase/toy/adam.h"

#include <cmath>

namespace tandem::drift {

double Adam::Update(const std::vector<double>& gradient, std::vector<double>& parameters) {
  double sum = 0;
  for (const double g : gradient) sum += g * g;
  const double norm = std::sqrt(sum);
  const double scale = norm > options_.max_norm ? options_.max_norm / norm : 1;
  ++num_updates_;
  const auto t = static_cast<double>(num_updates_);
  const double mean_rest = 1 - std::pow(options_.beta1, t);
  const double square_rest = 1 - std::pow(options_.beta2, t);
  for (size_t i = 0; i < gradient.size(); ++i) {
    const double g = gradient[i] * scale;
    mean_[i] = options_.beta1 * mean_[i] + (1 - options_.beta1) * g;
    square_[i] = options_.beta2 * square_[i] + (1 - options_.beta2) * g * g;
    parameters[i] -= options_.learning_rate * (mean_[i] / mean_rest) /
                     (std::sqrt(square_[i] / square_rest) + options_.epsilon);
  }
  return norm;
}

}  // namespace tandem::drift
