#include "common/matrix/quantise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "common/matrix/e4m3.h"

namespace tandem {
namespace {

TEST(QuantiseInt8Test, ScalesTheLargestSizeTo127AndRoundsHalfWayToEven) {
  // scale 254 / 127 = 2: 1 / 2 rounds to 0, 3 / 2 to 2, -5 / 2 to -2.
  const std::vector<float> row = {-254, 1, 3, -5, 100};
  std::vector<int8_t> values(5);
  EXPECT_EQ(QuantiseInt8(row.data(), 5, values.data()), 2.0f);
  EXPECT_EQ(values, (std::vector<int8_t>{-127, 0, 2, -2, 50}));
}

TEST(QuantiseInt8Test, ARowOfZerosStaysZeroAndOneWithANaNMakesEverythingNaN) {
  std::vector<int8_t> values = {1, 1};
  const std::vector<float> zeros = {0, 0};
  EXPECT_EQ(QuantiseInt8(zeros.data(), 2, values.data()), 0.0f);
  EXPECT_EQ(values, (std::vector<int8_t>{0, 0}));
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    const std::vector<float> row = {1, bad};
    EXPECT_TRUE(std::isnan(QuantiseInt8(row.data(), 2, values.data())));
    EXPECT_EQ(values, (std::vector<int8_t>{0, 0}));
  }
}

TEST(QuantiseInt4Test, ScalesAGroupTo7WithAScaleRoundedToBf16) {
  // 7.03 / 7 = 1.00428.. lies between the bf16 1 and 1.0078125, nearer to 1 + 2^-7; 7.03 / that is
  // 6.97. With 7.01 the scale is 1, and 7.01 rounds to 7.
  std::vector<int8_t> values(3);
  const std::vector<float> row = {7.03f, -3.6f, 0.4f};
  EXPECT_EQ(QuantiseInt4(row.data(), 3, values.data()), 1.0078125f);
  EXPECT_EQ(values, (std::vector<int8_t>{7, -4, 0}));
  const std::vector<float> other = {-7.01f, 2.5f, 3.5f};
  EXPECT_EQ(QuantiseInt4(other.data(), 3, values.data()), 1.0f);
  EXPECT_EQ(values, (std::vector<int8_t>{-7, 2, 4}));
}

TEST(E4m3Test, EveryCodeComesBackAsItself) {
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7f) == 0x7f) continue;  // NaN
    EXPECT_EQ(NearestE4m3(E4m3ToFloat(static_cast<uint8_t>(code))), code);
  }
}

TEST(E4m3Test, HasTheValuesOfTheSpecification) {
  EXPECT_EQ(E4m3ToFloat(0x7e), 448.0f);
  EXPECT_EQ(E4m3ToFloat(0x08), std::ldexp(1.0f, -6));  // the least normal value
  EXPECT_EQ(E4m3ToFloat(0x01), std::ldexp(1.0f, -9));  // the least subnormal one
  EXPECT_EQ(E4m3ToFloat(0x07), 7 * std::ldexp(1.0f, -9));
  EXPECT_EQ(E4m3ToFloat(0xb8), -1.0f);
  EXPECT_EQ(E4m3ToFloat(0x39), 1.125f);
}

TEST(E4m3Test, RoundsToTheNearestValueTiesToEvenAndSaturates) {
  EXPECT_EQ(E4m3ToFloat(NearestE4m3(1.0625f)), 1.0f);   // half way between 1 and 1.125
  EXPECT_EQ(E4m3ToFloat(NearestE4m3(1.1875f)), 1.25f);  // half way between 1.125 and 1.25
  EXPECT_EQ(E4m3ToFloat(NearestE4m3(-1.07f)), -1.125f);
  EXPECT_EQ(E4m3ToFloat(NearestE4m3(1000.0f)), 448.0f);
  EXPECT_EQ(E4m3ToFloat(NearestE4m3(449.0f)), 448.0f);
  const float unit = std::ldexp(1.0f, -9);
  EXPECT_EQ(E4m3ToFloat(NearestE4m3(0.5f * unit)), 0.0f);
  EXPECT_EQ(E4m3ToFloat(NearestE4m3(1.5f * unit)), 2 * unit);
  EXPECT_EQ(E4m3ToFloat(NearestE4m3(7.6f * unit)), 8 * unit);  // becomes normal
}

TEST(FakeQuantiseTest, GivesStoredValuesTimesTheirScales) {
  const std::vector<float> row = {-254, 1, 3, -5};
  std::vector<float> out(4);
  FakeQuantise({WeightScheme::kInt8}, row.data(), 4, out.data());
  EXPECT_EQ(out, (std::vector<float>{-254, 0, 4, -4}));
  const std::vector<float> fp8 = {448, 1.0625f, -3.3f};  // scale 1
  out.resize(3);
  FakeQuantise({WeightScheme::kFp8E4m3}, fp8.data(), 3, out.data());
  EXPECT_EQ(out, (std::vector<float>{448, 1, -3.25f}));
  FakeQuantise({WeightScheme::kWide}, fp8.data(), 3, out.data());
  EXPECT_EQ(out, fp8);
}

TEST(FakeQuantiseTest, EveryGroupOfInt4HasItsOwnScale) {
  std::vector<float> row(40, 0.0f), out(40);
  row[0] = 7;      // the first group of 32: scale 1
  row[1] = 0.4f;   // rounds to 0
  row[32] = 0.5f;  // the rest: scale 0.5 / 7 rounded to bf16, 0.07128906
  FakeQuantise({WeightScheme::kInt4Group, 32}, row.data(), 40, out.data());
  EXPECT_EQ(out[0], 7.0f);
  EXPECT_EQ(out[1], 0.0f);
  EXPECT_EQ(out[32], 7 * 0.0712890625f);
}

}  // namespace
}  // namespace tandem
