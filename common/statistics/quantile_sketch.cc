#include "common/statistics/quantile_sketch.h"

#include <cmath>

namespace tandem::offpolicy {
namespace {

// Bin i holds (gamma^(i-1), gamma^i]; its representative is off by at most kRelativeError at both
// ends.
constexpr double kGamma =
    (1 + QuantileSketch::kRelativeError) / (1 - QuantileSketch::kRelativeError);

double LogGamma() {
  static const double value = std::log(kGamma);
  return value;
}

}  // namespace

int32_t QuantileSketch::BinOf(double value) {
  if (value < kSmallest) return kZeroBin;
  return static_cast<int32_t>(std::ceil(std::log(value) / LogGamma()));
}

double QuantileSketch::ValueOf(int32_t bin) {
  return bin == kZeroBin ? 0 : 2 * std::exp(bin * LogGamma()) / (kGamma + 1);
}

void QuantileSketch::Add(double value) {
  ++bins_[BinOf(value)];
  ++count_;
}

void QuantileSketch::Merge(const QuantileSketch& other) {
  for (const auto& [bin, count] : other.bins_) bins_[bin] += count;
  count_ += other.count_;
}

double QuantileSketch::Quantile(double q) const {
  const auto rank = static_cast<int64_t>(q * static_cast<double>(count_ - 1));
  int64_t below = 0;
  for (const auto& [bin, count] : bins_) {
    below += count;
    if (below > rank) return ValueOf(bin);
  }
  return 0;
}

}  // namespace tandem::offpolicy
