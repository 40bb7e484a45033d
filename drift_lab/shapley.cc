#include "drift_lab/shapley.h"

#include <bit>

#include "common/base/check.h"

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

std::vector<FactorShare> ShapleyShares(std::span<const double> values) {
  const int k = std::countr_zero(values.size());
  TANDEM_CHECK(std::has_single_bit(values.size()) && k <= kMaxFactors);
  std::vector<FactorShare> shares(static_cast<size_t>(k));
  for (int i = 0; i < k; ++i) {
    FactorShare& of = shares[static_cast<size_t>(i)];
    const std::vector<double> weights = ShapleyWeights(k, i);
    for (size_t cell = 0; cell < values.size(); ++cell) of.share += weights[cell] * values[cell];
    of.alone = values[size_t{1} << i] - values[0];
    of.last = values.back() - values[(values.size() - 1) & ~(size_t{1} << i)];
  }
  return shares;
}

}  // namespace tandem::drift
