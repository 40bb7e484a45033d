#include "drift_lab/diagnosis/record_shift.h"

#include <gtest/gtest.h>

#include <cmath>

#include <vector>

namespace tandem::drift {
namespace {

const std::vector<float> kReplay = {-1, -2, -3, -4, -5, -6};

TEST(RecordShiftTest, FindsLogProbsOfTheTokenBeforeAndOfTheTokenAfter) {
  EXPECT_EQ(ShiftOf(kReplay, kReplay, 1e-6), 0);
  EXPECT_EQ(ShiftOf(std::vector<float>{0, -1, -2, -3, -4, -5}, kReplay, 1e-6), 1);
  EXPECT_EQ(ShiftOf(std::vector<float>{-2, -3, -4, -5, -6, 0}, kReplay, 1e-6), -1);
  EXPECT_EQ(ShiftOf(std::vector<float>{0, 0, -1, -2, -3, -4}, kReplay, 1e-6), 2);
}

TEST(RecordShiftTest, ADriftIsNoShift) {
  EXPECT_EQ(ShiftOf(std::vector<float>{-1.1f, -2, -3, -4, -5, -6}, kReplay, 1e-6), 0);
  EXPECT_EQ(ShiftOf(std::vector<float>{-0.6f, -1.7f, -2.6f, -3.6f, -4.7f, -5.6f}, kReplay, 1e-6),
            0);
}

TEST(RecordShiftTest, AShiftIsSeenThroughAnotherDrift) {
  EXPECT_EQ(ShiftOf(std::vector<float>{0, -1.2f, -2.1f, -3.2f, -4.1f, -5.2f}, kReplay, 1e-6), 1);
  EXPECT_EQ(ShiftOf(std::vector<float>{0, std::nanf(""), -2, -3, -4, -5}, kReplay, 1e-6), 0);
}

// Rows of 6, 6, 6 and 2 tokens: two shifted, one right, one too short to tell.
TEST(RecordShiftTest, TheFractionIsOverRowsThatCanTell) {
  std::vector<float> replay, record;
  const auto row = [&](std::vector<float> recorded, size_t length) {
    replay.insert(replay.end(), kReplay.begin(),
                  kReplay.begin() + static_cast<std::ptrdiff_t>(length));
    record.insert(record.end(), recorded.begin(),
                  recorded.begin() + static_cast<std::ptrdiff_t>(length));
  };
  row({0, -1, -2, -3, -4, -5}, 6);
  row(kReplay, 6);
  row({0, -1, -2, -3, -4, -5}, 6);
  row({0, -1}, 2);
  const std::vector<int64_t> offsets = {0, 6, 12, 18, 20};
  const ShiftEstimate estimate = EstimateShifts(record, replay, offsets, 1e-6);
  EXPECT_EQ(estimate.shift, (std::vector<int>{1, 0, 1, 0}));
  EXPECT_EQ(estimate.num_rows, 3);
  EXPECT_EQ(estimate.most_common, 1);
  EXPECT_NEAR(estimate.fraction, 2.0 / 3, 1e-12);
  EXPECT_NEAR(estimate.interval.low, 0.1767, 1e-3);  // Jeffreys, 2 of 3: Beta(2.5, 1.5)
  EXPECT_NEAR(estimate.interval.high, 0.9613, 1e-3);
}

}  // namespace
}  // namespace tandem::drift
