#include "common/statistics/quantile_sketch.h"

#include <gtest/gtest.h>

namespace tandem::offpolicy {
namespace {

TEST(QuantileSketchTest, IsWithinHalfAPercentOverTwelveDecades) {
  for (double value = 2e-12; value < 50; value *= 1.37) {
    QuantileSketch sketch;
    sketch.Add(value);
    EXPECT_NEAR(sketch.Quantile(0.5) / value, 1, QuantileSketch::kRelativeError * 1.0001) << value;
  }
}

TEST(QuantileSketchTest, KeepsAnExactZero) {
  QuantileSketch sketch;
  for (int i = 0; i < 99; ++i) sketch.Add(0);
  sketch.Add(0.25);
  EXPECT_EQ(sketch.Quantile(0.98), 0);
  EXPECT_NEAR(sketch.Quantile(1), 0.25, 0.25 * 0.006);
}

TEST(QuantileSketchTest, OfAnEmptySketchIsZero) { EXPECT_EQ(QuantileSketch().Quantile(0.5), 0); }

TEST(QuantileSketchTest, MergedPartsAreTheWhole) {
  QuantileSketch whole, odd, even;
  for (int i = 1; i <= 1000; ++i) {
    whole.Add(i * i);
    (i % 2 ? odd : even).Add(i * i);
  }
  odd.Merge(even);
  EXPECT_EQ(odd.bins(), whole.bins());
  EXPECT_EQ(odd.count(), 1000);
  EXPECT_NEAR(odd.Quantile(0.5), 500.0 * 500.0, 500.0 * 500.0 * 0.006);
}

TEST(QuantileSketchTest, BinsRiseWithTheValue) {
  EXPECT_EQ(QuantileSketch::BinOf(0), QuantileSketch::kZeroBin);
  EXPECT_LT(QuantileSketch::BinOf(1e-9), QuantileSketch::BinOf(1.02e-9));
  EXPECT_EQ(QuantileSketch::BinOf(1), 0);  // (1/gamma, 1]
}

}  // namespace
}  // namespace tandem::offpolicy
