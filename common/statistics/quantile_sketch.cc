#include "common/statistics/quantile_sketch.h"

#include <cmath>

namespace tandem::offpolicy {
namespace {

// Bin i holds the values in (gamma^(i-1), gamma^i], with gamma = (1 + e) / (1 - e) for a relative
// error e. It is represented by 2 gamma^i / (gamma + 1), whose relative error is e at both ends of
// the bin and less between them. Invariant: bins are counts and never merged or dropped, so the
// sketch of a union is the sum of the sketches, exactly, in any order. Quantile walks the bins in
// rising order to the one that holds the wanted rank.
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
