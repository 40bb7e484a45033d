#include "common/lora/lora_change.h"

#include <cstddef>
#include <vector>

namespace tandem {
namespace {

// Rows of [rank, n] as those of [n, rank].
std::vector<double> ByColumn(const float* rows, int64_t rank, int64_t n) {
  std::vector<double> columns(static_cast<size_t>(rank * n));
  for (int64_t k = 0; k < rank; ++k) {
    for (int64_t i = 0; i < n; ++i) columns[static_cast<size_t>(i * rank + k)] = rows[k * n + i];
  }
  return columns;
}

// X^T Y of x [n, rank] and y [n, other], [rank, other].
std::vector<double> Gram(const std::vector<double>& x, const std::vector<double>& y, int64_t rank,
                         int64_t other) {
  std::vector<double> gram(static_cast<size_t>(rank * other));
  const auto n = static_cast<int64_t>(x.size()) / rank;
  for (int64_t i = 0; i < n; ++i) {
    const double* const right = y.data() + i * other;
    for (int64_t j = 0; j < rank; ++j) {
      const double left = x[static_cast<size_t>(i * rank + j)];
      double* const to = gram.data() + j * other;
      for (int64_t k = 0; k < other; ++k) to[k] += left * right[k];
    }
  }
  return gram;
}

}  // namespace

double ChangeProduct(const LoraFactors& one, const LoraFactors& other, int64_t out) {
  const std::vector<double> of_a =
      Gram(ByColumn(one.a, one.rank, one.in), ByColumn(other.a, other.rank, one.in), one.rank,
           other.rank);
  const std::vector<double> of_b = Gram(
      {one.b, one.b + out * one.rank}, {other.b, other.b + out * other.rank}, one.rank, other.rank);
  double sum = 0;
  for (size_t i = 0; i < of_a.size(); ++i) sum += of_a[i] * of_b[i];
  return sum * one.scaling * other.scaling;
}

}  // namespace tandem
