// QuantileSketch: quantiles of values >= 0 to a relative error of kRelativeError, from counts in
// logarithmic bins that add up over ranks and sequences exactly (DDSketch: Masson, Rim and Lee,
// VLDB 2019, arXiv 1908.10693). Values under kSmallest count as 0, so an exact 0 stays one.
//
// Thread-compatible. Memory: one bin per 1 % of spread, at most a few thousand.
#ifndef TANDEM_COMMON_STATISTICS_QUANTILE_SKETCH_H_
#define TANDEM_COMMON_STATISTICS_QUANTILE_SKETCH_H_

#include <cstdint>
#include <map>

namespace tandem::offpolicy {

class QuantileSketch {
 public:
  static constexpr double kRelativeError = 0.005;
  static constexpr double kSmallest = 1e-12;

  // Bin of a value; kZeroBin below kSmallest. Rises with the value.
  static constexpr int32_t kZeroBin = INT32_MIN;
  static int32_t BinOf(double value);
  static double ValueOf(int32_t bin);  // what stands for all of the bin

  void Add(double value);  // >= 0, finite
  void Merge(const QuantileSketch& other);

  // The value with a share `q` in [0, 1] of the values at or below it (the lower of two neighbours:
  // numpy's "lower"), to kRelativeError; 0 of an empty sketch.
  double Quantile(double q) const;

  int64_t count() const { return count_; }
  const std::map<int32_t, int64_t>& bins() const { return bins_; }

 private:
  std::map<int32_t, int64_t> bins_;
  int64_t count_ = 0;
};

}  // namespace tandem::offpolicy

#endif  // TANDEM_COMMON_STATISTICS_QUANTILE_SKETCH_H_
