#include "drift_lab/replay/coefficient_basis.h"

#include <cmath>
#include <cstddef>
#include <numeric>

namespace tandem::drift {
namespace {

double Dot(std::span<const double> a, std::span<const double> b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

double Length(std::span<const double> a) { return std::sqrt(Dot(a, a)); }

void Subtract(double times, std::span<const double> from, std::vector<double>& row) {
  for (size_t t = 0; t < row.size(); ++t) row[t] -= times * from[t];
}

void Scale(double factor, std::vector<double>& row) {
  for (double& value : row) value *= factor;
}

}  // namespace

CoefficientBasis SpanOf(const std::vector<std::span<const double>>& rows, double tolerance) {
  CoefficientBasis basis{.weights = std::vector<std::vector<double>>(rows.size())};
  std::vector<std::vector<double>> rest;
  std::vector<double> lengths;
  for (const std::span<const double> row : rows) {
    rest.emplace_back(row.begin(), row.end());
    lengths.push_back(Length(row));
  }
  while (true) {
    size_t worst = 0;
    double distance = 0;
    for (size_t m = 0; m < rest.size(); ++m) {
      if (lengths[m] == 0 || Length(rest[m]) / lengths[m] <= distance) continue;
      worst = m;
      distance = Length(rest[m]) / lengths[m];
    }
    if (distance <= tolerance) return basis;
    std::vector<double> direction = rest[worst];
    Scale(1 / Length(direction), direction);
    for (const std::vector<double>& other : basis.directions) {  // removes what rounding left
      Subtract(Dot(direction, other), other, direction);
    }
    Scale(1 / Length(direction), direction);
    for (size_t m = 0; m < rest.size(); ++m) {
      const double weight = Dot(rest[m], direction);
      basis.weights[m].push_back(weight);
      Subtract(weight, direction, rest[m]);
    }
    basis.directions.push_back(std::move(direction));
  }
}

}  // namespace tandem::drift
