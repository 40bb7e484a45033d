// The effect of corrections on normally distributed log-ratios: the library, integrated
// numerically, against closed forms and against the tables of docs/corrections.md.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <ostream>
#include <vector>

#include "common/offpolicy/correction.h"

namespace tandem::offpolicy {
namespace {

double Phi(double x) { return std::erfc(-x / std::numbers::sqrt2) / 2; }

// Completions of `length` tokens that all have the same delta, one per point of a grid over `mean`
// +- 8 `deviation`. Filters and weights of whole completions cannot distinguish them from other
// tokens with that mean.
struct Grid {
  Grid(double mean, double deviation, int64_t length, int64_t points) : length(length) {
    for (int64_t i = 0; i < points; ++i) {
      const double z = -8 + 16 * (static_cast<double>(i) + 0.5) / static_cast<double>(points);
      density.push_back(std::exp(-z * z / 2) / std::sqrt(2 * std::numbers::pi) * 16 /
                        static_cast<double>(points));
      for (int64_t t = 0; t < length; ++t) {
        proximal.push_back(mean + z * deviation);
        completion.push_back(i);
      }
    }
  }
  Correction Compute(const CorrectionOptions& options) const {
    const std::vector<double> behaviour(proximal.size());
    const std::vector<uint8_t> mask(proximal.size(), 1);
    return ComputeCorrection({.proximal_logprobs = proximal,
                              .behaviour_logprobs = behaviour,
                              .mask = mask,
                              .completion = completion},
                             options)
        .value();
  }
  // The integral over the grid of the first token's value in each completion.
  template <typename T>
  double Integrate(const std::vector<T>& of_token) const {
    double sum = 0;
    for (size_t i = 0; i < density.size(); ++i) {
      sum += density[i] * static_cast<double>(of_token[i * static_cast<size_t>(length)]);
    }
    return sum;
  }

  int64_t length;
  std::vector<double> density, proximal;
  std::vector<int64_t> completion;
};

// log w ~ N(-S^2 / 2, S^2), so that E[w] = 1.
struct LogNormalRow {
  double s, ceiling, tis_mean, mask_mean, share_above;
};

// GoogleTest would otherwise print bytes of memory as the names of test cases.
void PrintTo(const LogNormalRow& row, std::ostream* out) { *out << row.s << " to " << row.ceiling; }

class LogNormalTest : public ::testing::TestWithParam<LogNormalRow> {};

TEST_P(LogNormalTest, CeilingAndMaskLoseTheMassOfTheTable) {
  const auto [s, ceiling, tis_mean, mask_mean, share_above] = GetParam();
  const Grid grid(-s * s / 2, s, 1, 40001);
  const Correction tis = grid.Compute({.max_weight = ceiling});
  const Correction mask = grid.Compute({.kind = CorrectionKind::kTokenMask, .max_weight = ceiling});
  const double tis_got = grid.Integrate(tis.weight), mask_got = grid.Integrate(mask.weight);
  EXPECT_NEAR(tis_got, tis_mean, 6e-4);
  EXPECT_NEAR(mask_got, mask_mean, 6e-4);
  EXPECT_NEAR(1 - grid.Integrate(mask.kept), share_above, 6e-4);
  // E[w; w <= C] = Phi(log C / S - S / 2), P(w > C) = Phi(-log C / S - S / 2).
  const double below = Phi(std::log(ceiling) / s - s / 2);
  EXPECT_NEAR(mask_got, below, 1e-3);
  EXPECT_NEAR(tis_got, below + ceiling * Phi(-std::log(ceiling) / s - s / 2), 1e-4);
}

// clang-format off
INSTANTIATE_TEST_SUITE_P(Table, LogNormalTest, ::testing::Values(
    //            S     C   TIS    mask   above C
    LogNormalRow{0.25, 2, 1.000, 0.996, 0.002},
    LogNormalRow{0.5,  2, 0.974, 0.872, 0.051},
    LogNormalRow{0.5,  3, 0.996, 0.974, 0.007},
    LogNormalRow{1.0,  2, 0.809, 0.577, 0.116},
    LogNormalRow{1.0,  3, 0.890, 0.725, 0.055},
    LogNormalRow{1.5,  2, 0.612, 0.387, 0.113},
    LogNormalRow{2.0,  2, 0.435, 0.257, 0.089},
    LogNormalRow{2.0,  5, 0.600, 0.423, 0.036}));
// clang-format on

TEST(LogNormalTest, WithoutABoundTheMeanWeightIsOne) {
  const Grid grid(-0.5, 1, 1, 40001);
  EXPECT_NEAR(grid.Integrate(grid.Compute({.max_weight = 1e9}).weight), 1, 1e-9);
}

// delta of each token ~ N(-s^2 / 2, s^2), independent: their mean is N(-s^2 / 2, s^2 / T).
struct LengthRow {
  double s;
  int64_t length;
  double product_keeps, narrow_gate_keeps, wide_gate_keeps;
};

void PrintTo(const LengthRow& row, std::ostream* out) { *out << row.s << " x " << row.length; }

class LengthTrapTest : public ::testing::TestWithParam<LengthRow> {};

TEST_P(LengthTrapTest, ProductsRefuseLongAnswersAndNarrowGatesShortOnes) {
  const auto [s, length, product, narrow, wide] = GetParam();
  const Grid grid(-s * s / 2, s / std::sqrt(static_cast<double>(length)), length,
                  length > 2000 ? 501 : 2001);
  const auto keeps = [&](const CorrectionOptions& options) {
    return grid.Integrate(grid.Compute(options).kept);
  };
  constexpr double kTolerance = 0.015;  // of the grid's edges and of the table's two digits
  EXPECT_NEAR(keeps({.kind = CorrectionKind::kSequenceMask, .min_weight = 0.5, .max_weight = 2}),
              product, kTolerance);
  EXPECT_NEAR(keeps({.kind = CorrectionKind::kOff, .geometric_min = 0.999, .geometric_max = 1.001}),
              narrow, kTolerance);
  EXPECT_NEAR(keeps({.kind = CorrectionKind::kOff, .geometric_min = 0.99, .geometric_max = 1.01}),
              wide, kTolerance);
  // The length-aware filter at the true s rejects 0.27 % at every length.
  EXPECT_NEAR(keeps({.kind = CorrectionKind::kOff, .geometric_z = 3, .geometric_noise = s}), 0.9973,
              kTolerance);
}

// clang-format off
INSTANTIATE_TEST_SUITE_P(Table, LengthTrapTest, ::testing::Values(
    //         s     T     product narrow wide
    LengthRow{0.01, 256,  1.00, 0.89, 1.00},
    LengthRow{0.01, 1024, 0.97, 1.00, 1.00},
    LengthRow{0.03, 256,  0.84, 0.40, 1.00},
    LengthRow{0.03, 1024, 0.48, 0.66, 1.00},
    LengthRow{0.03, 8192, 0.08, 0.95, 1.00},
    LengthRow{0.05, 256,  0.58, 0.23, 1.00},
    LengthRow{0.05, 1024, 0.25, 0.36, 1.00},
    LengthRow{0.10, 256,  0.25, 0.09, 0.78},
    LengthRow{0.10, 1024, 0.05, 0.07, 0.95}));
// clang-format on

}  // namespace
}  // namespace tandem::offpolicy
