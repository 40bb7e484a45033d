// QuantileSketch: quantiles of values >= 0 with a relative error of kRelativeError, from counts in
// logarithmic bins, which add up exactly over ranks and sequences (DDSketch: Masson, Rim and Lee,
// VLDB 2019, arXiv 1908.10693). Values below kSmallest count as 0, so an exact 0 stays 0.
//
// Thread-compatible. Memory: one bin per 1 % of spread, at most a few thousand bins.
#pragma once

#include <cstdint>
#include <map>

namespace tandem::offpolicy {

class QuantileSketch {
 public:
  static constexpr double kRelativeError = 0.005;
  static constexpr double kSmallest = 1e-12;

  // The bin of a value, which rises with the value; kZeroBin below kSmallest.
  static constexpr int32_t kZeroBin = INT32_MIN;
  static int32_t BinOf(double value);
  static double ValueOf(int32_t bin);  // the value that represents the bin

  void Add(double value);  // >= 0, finite
  void Merge(const QuantileSketch& other);

  // The value with a share `q` in [0, 1] of the values at or below it (the lower of two neighbours,
  // numpy's "lower"), to kRelativeError; 0 for an empty sketch.
  double Quantile(double q) const;

  int64_t count() const { return count_; }
  const std::map<int32_t, int64_t>& bins() const { return bins_; }

 private:
  std::map<int32_t, int64_t> bins_;
  int64_t count_ = 0;
};

}  // namespace tandem::offpolicy
