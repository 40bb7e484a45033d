// Rows as they are sent, worked out by hand, and matrices packed from them.
#include "common/matrix/stored_row.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string_view>
#include <vector>

#include "common/matrix/packed_matrix.h"
#include "common/tensor/bf16_rounding.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;

std::vector<uint8_t> Stored(const WeightFormat& format, const std::vector<float>& row) {
  std::vector<uint8_t> bytes(
      static_cast<size_t>(StoredRowBytes(format, static_cast<int64_t>(row.size()))));
  StoreRow(format, row.data(), static_cast<int64_t>(row.size()), bytes.data());
  return bytes;
}

TEST(StoredRowTest, Int8IsTheValuesAndThenTheScale) {
  // The largest is 254, so the scale is 2 = 0x40000000, and 3 / 2 = 1.5 rounds to the even 2.
  EXPECT_THAT(Stored({WeightScheme::kInt8}, {254, -254, 2, 3}),
              ElementsAre(127, 0x81, 1, 2, 0, 0, 0, 0x40));
}

TEST(StoredRowTest, Fp8IsTheCodesAndThenTheScale) {
  // Scale 1 = 0x3f800000; 448 is 0x7e and 1 is 0x38 in e4m3.
  EXPECT_THAT(Stored({WeightScheme::kFp8E4m3}, {448, 1, -1, 0}),
              ElementsAre(0x7e, 0x38, 0xb8, 0, 0, 0, 0x80, 0x3f));
}

TEST(StoredRowTest, Int4IsPairsOfValuesPlus8AndThenAScaleForEachGroup) {
  // Two groups of 32 and 8: the first of scale 1 (bf16 0x3f80) with 7 and -7 at its start, the second of
  // scale 2 (0x4000) with 14.
  std::vector<float> row(40);
  row[0] = 7;
  row[1] = -7;
  row[32] = 14;
  const std::vector<uint8_t> bytes = Stored({WeightScheme::kInt4Group, 32}, row);
  ASSERT_EQ(bytes.size(), 20u + 4u);
  EXPECT_EQ(bytes[0], 0x1f);
  EXPECT_EQ(bytes[1], 0x88);
  EXPECT_EQ(bytes[16], 0x8f);
  EXPECT_THAT(std::vector<uint8_t>(bytes.begin() + 20, bytes.end()),
              ElementsAre(0x80, 0x3f, 0, 0x40));
  int8_t values[4];
  LoadInt4(bytes.data(), 0, 4, values);
  EXPECT_THAT(values, ElementsAre(7, -7, 0, 0));
}

TEST(StoredRowTest, AMatrixOfStoredRowsIsTheOneThatIsQuantisedWhenItIsPacked) {
  constexpr int64_t kDepth = 72, kRows = 37;  // panels and groups that are not full
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  std::vector<std::vector<uint16_t>> bf16(kRows, std::vector<uint16_t>(kDepth));
  for (auto& row : bf16) {
    for (uint16_t& value : row) value = NearestBf16(normal(random));
  }
  std::fill(bf16[5].begin(), bf16[5].end(), uint16_t{0});
  bf16[6][3] = 0x7fc0;  // NaN
  for (const WeightFormat& format :
       {WeightFormat{WeightScheme::kInt8}, WeightFormat{WeightScheme::kFp8E4m3},
        WeightFormat{WeightScheme::kInt4Group, 32}, WeightFormat{WeightScheme::kInt4Group, 64}}) {
    std::vector<const uint16_t*> wide;
    std::vector<std::vector<uint8_t>> rows;
    std::vector<const uint8_t*> stored;
    for (const auto& row : bf16) {
      wide.push_back(row.data());
      std::vector<float> floats;
      for (const uint16_t value : row) floats.push_back(Bf16ToFloat(value));
      rows.push_back(Stored(format, floats));
    }
    for (const auto& row : rows) stored.push_back(row.data());
    PackedMatrix want(std::span<const uint16_t*const>(wide), kDepth, format), got;
    got.Pack(std::span<const uint8_t* const>(stored), kDepth, format);
    const auto text = [](const PackedMatrix& matrix) {
      return std::string_view(matrix.stored().data(), matrix.stored().size());
    };
    EXPECT_EQ(text(got), text(want)) << WeightSchemeName(format.scheme);
  }
}

}  // namespace
}  // namespace tandem
