#include "drift_lab/ablation/token_parts.h"

#include <bit>
#include <cstddef>
#include <cstdint>

namespace tandem::drift {
namespace {

double Factorial(int n) { return n < 2 ? 1 : n * Factorial(n - 1); }

}  // namespace

std::vector<double> ShapleyWeights(int k, int i) {
  std::vector<double> weights(size_t{1} << k);
  for (uint32_t cell = 0; cell < weights.size(); ++cell) {
    if (cell >> i & 1) continue;
    const int size = std::popcount(cell);
    const double weight = Factorial(size) * Factorial(k - 1 - size) / Factorial(k);
    weights[cell | 1u << i] += weight;
    weights[cell] -= weight;
  }
  return weights;
}

std::vector<double> AloneWeights(int k, int i) {
  std::vector<double> weights(size_t{1} << k);
  weights[size_t{1} << i] += 1;
  weights[0] -= 1;
  return weights;
}

std::vector<double> LastWeights(int k, int i) {
  std::vector<double> weights(size_t{1} << k);
  const size_t all = weights.size() - 1;
  weights[all] += 1;
  weights[all & ~(size_t{1} << i)] -= 1;
  return weights;
}

}  // namespace tandem::drift
