#include "trainer/data/mixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/base/check.h"

namespace tandem::trainer {

namespace {
constexpr double kUnits = 1e9;
}

Mixture::Mixture(const std::vector<double>& weights)
    : credit_(weights.size(), 0), counts_(weights.size(), 0) {
  TANDEM_CHECK(!weights.empty());
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (const double weight : weights) {
    units_.push_back(std::max<int64_t>(1, std::llround(weight / sum * kUnits)));
  }
  total_ = std::accumulate(units_.begin(), units_.end(), int64_t{0});
}

void Mixture::Step() {
  for (size_t i = 0; i < units_.size(); ++i) credit_[i] += units_[i];
  const auto most = std::ranges::max_element(credit_);  // the first of equals
  const auto source = static_cast<size_t>(most - credit_.begin());
  *most -= total_;
  last_ = {.source = source, .count = counts_[source]++};
  ++next_place_;
}

Mixture::Draw Mixture::At(int64_t place) {
  if (place < next_place_ - 1) {
    std::ranges::fill(credit_, 0);
    std::ranges::fill(counts_, 0);
    next_place_ = 0;
  }
  while (next_place_ <= place) Step();
  return last_;
}

}  // namespace tandem::trainer
