#include "common/matrix/packed_matrix.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/tensor/bf16_rounding.h"

namespace tandem {
namespace {

using Rows = std::vector<std::vector<float>>;

float Rounded(float x) { return std::bit_cast<float>(static_cast<uint32_t>(NearestBf16(x)) << 16); }

// Values that bf16 represents exactly, so that both kinds of matrix hold the same numbers.
Rows RandomRows(int64_t n, int64_t depth, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Rows rows(n, std::vector<float>(depth));
  for (auto& row : rows) {
    for (float& x : row) x = Rounded(normal(random));
  }
  return rows;
}

PackedMatrix PackFp32(const Rows& weights) {
  std::vector<const float*> rows;
  for (const auto& row : weights) rows.push_back(row.data());
  return PackedMatrix(rows, static_cast<int64_t>(weights[0].size()));
}

// Packs into `matrix`, whatever its contents.
void PackBf16(const Rows& weights, PackedMatrix* matrix) {
  std::vector<std::vector<uint16_t>> bits;
  for (const auto& row : weights) {
    bits.emplace_back();
    for (const float x : row) bits.back().push_back(NearestBf16(x));
  }
  std::vector<const uint16_t*> rows;
  for (const auto& row : bits) rows.push_back(row.data());
  matrix->Pack(rows, static_cast<int64_t>(weights[0].size()));
}

PackedMatrix PackBf16(const Rows& weights) {
  PackedMatrix matrix;
  PackBf16(weights, &matrix);
  return matrix;
}

// Every output of every row, [rows][columns].
Rows Product(InstructionSet set, const PackedMatrix& matrix, const Rows& x, OperandType type) {
  const int64_t n = static_cast<int64_t>(x.size()), depth = matrix.depth();
  std::vector<char> operand(static_cast<size_t>(n * depth * OperandBytes(type)));
  for (int64_t r = 0; r < n; ++r) {
    StoreOperand(set, x[r].data(), depth, false, type,
                 operand.data() + r * depth * OperandBytes(type));
  }
  const int64_t width = matrix.num_tiles() * PackedMatrix::kTileColumns;
  std::vector<float> out(static_cast<size_t>(n * width));
  for (int64_t tile = 0; tile < matrix.num_tiles(); ++tile) {
    matrix.MultiplyTile(set, tile, {type, operand.data(), depth}, n,
                        out.data() + tile * PackedMatrix::kTileColumns, width);
  }
  Rows result;
  for (int64_t r = 0; r < n; ++r) {
    result.emplace_back(out.begin() + r * width, out.begin() + r * width + matrix.columns());
  }
  return result;
}

std::vector<OperandType> OperandTypes(InstructionSet set, const PackedMatrix& matrix) {
  std::vector<OperandType> types = {OperandType::kFp32};
  if (matrix.is_bf16() && matrix.depth() % 2 == 0 &&
      RoundedOperandType(set) == OperandType::kBf16) {
    types.push_back(OperandType::kBf16);
  }
  return types;
}

class PackedMatrixTest : public ::testing::TestWithParam<InstructionSet> {};

TEST_P(PackedMatrixTest, GivesTheProductWorkedOutByHand) {
  // Rows (1,2,3,0), (-1,.5,4,2); weights (1,0,2,1), (-1,1,1,.5).
  const Rows x = {{1, 2, 3, 0}, {-1, 0.5f, 4, 2}}, weights = {{1, 0, 2, 1}, {-1, 1, 1, 0.5f}};
  const Rows want = {{7, 4}, {9, 6.5f}};
  for (const PackedMatrix& matrix : {PackFp32(weights), PackBf16(weights)}) {
    for (const OperandType type : OperandTypes(GetParam(), matrix)) {
      EXPECT_EQ(Product(GetParam(), matrix, x, type), want);
    }
  }
}

TEST_P(PackedMatrixTest, AgreesWithSumsInDoublePrecisionForEveryShapeOfTile) {
  for (const int64_t depth : {1, 7, 32, 33}) {
    for (const int64_t columns : {1, 16, 17, 32, 50}) {
      const Rows weights = RandomRows(columns, depth, 1);
      for (const int64_t n : {1, 2, 3, 5, 7, 11, 12, 13, 25, 31}) {
        const Rows x = RandomRows(n, depth, 2);
        for (const PackedMatrix& matrix : {PackFp32(weights), PackBf16(weights)}) {
          for (const OperandType type : OperandTypes(GetParam(), matrix)) {
            const Rows got = Product(GetParam(), matrix, x, type);
            for (int64_t r = 0; r < n; ++r) {
              for (int64_t c = 0; c < columns; ++c) {
                double sum = 0, size = 0;
                for (int64_t k = 0; k < depth; ++k) {
                  sum += static_cast<double>(x[r][k]) * weights[c][k];
                  size += std::fabs(static_cast<double>(x[r][k]) * weights[c][k]);
                }
                ASSERT_NEAR(got[r][c], sum, 1e-6 * size + 1e-30)
                    << "depth " << depth << " row " << r << " of " << n << " column " << c;
              }
            }
          }
        }
      }
    }
  }
}

TEST_P(PackedMatrixTest, ARowsBitsDoNotDependOnItsPlaceOrOnHowManyRowsThereAre) {
  const Rows x = RandomRows(40, 576, 3);
  const Rows weights = RandomRows(48, 576, 4);
  for (const PackedMatrix& matrix : {PackFp32(weights), PackBf16(weights)}) {
    for (const OperandType type : OperandTypes(GetParam(), matrix)) {
      const Rows together = Product(GetParam(), matrix, x, type);
      for (size_t r = 0; r < x.size(); ++r) {
        ASSERT_EQ(Product(GetParam(), matrix, {x[r]}, type)[0], together[r]) << "row " << r;
      }
      const Rows turned(x.rbegin(), x.rend());
      const Rows backwards = Product(GetParam(), matrix, turned, type);
      ASSERT_EQ(Rows(backwards.rbegin(), backwards.rend()), together);
    }
  }
}

TEST_P(PackedMatrixTest, Bf16AndFp32MatricesOfTheSameNumbersGiveTheSameBits) {
  const Rows x = RandomRows(5, 63, 5), weights = RandomRows(20, 63, 6);
  EXPECT_EQ(Product(GetParam(), PackFp32(weights), x, OperandType::kFp32),
            Product(GetParam(), PackBf16(weights), x, OperandType::kFp32));
}

TEST(PackedMatrixBitsTest, MachinesWithAndWithoutAvx512GiveTheSameBits) {
  const Rows x = RandomRows(9, 64, 7), weights = RandomRows(33, 64, 8);
  for (const PackedMatrix& matrix : {PackFp32(weights), PackBf16(weights)}) {
    for (const InstructionSet set : SupportedInstructionSets()) {
      if (set == InstructionSet::kScalar) continue;  // has no fused multiply-add
      EXPECT_EQ(Product(set, matrix, x, OperandType::kFp32),
                Product(InstructionSet::kAvx2, matrix, x, OperandType::kFp32));
    }
  }
}

TEST(PackedMatrixLayoutTest, AColumnComesBackAsItWentIn) {
  const Rows weights = RandomRows(35, 7, 9);
  for (const PackedMatrix& matrix : {PackFp32(weights), PackBf16(weights)}) {
    for (const int64_t c : {0, 15, 16, 34}) {
      std::vector<float> column(7);
      matrix.CopyColumn(c, column.data());
      EXPECT_EQ(column, weights[c]);
    }
  }
}

TEST(PackedMatrixLayoutTest, NewWeightsTakeThePlaceOfThoseBefore) {
  for (const int64_t depth : {5, 32, 33, 70}) {
    PackedMatrix matrix = PackBf16(RandomRows(20, depth, 1));
    const void* const memory = matrix.TileAddress(0);
    const Rows next = RandomRows(20, depth, 2);
    PackBf16(next, &matrix);
    EXPECT_EQ(matrix.TileAddress(0), memory) << "the same shape needs no fresh memory";
    const PackedMatrix fresh = PackBf16(next);
    ASSERT_EQ(matrix.bytes(), fresh.bytes());
    EXPECT_EQ(std::memcmp(matrix.TileAddress(0), fresh.TileAddress(0),
                          static_cast<size_t>(fresh.bytes())),
              0);
    PackBf16(RandomRows(3, depth + 1, 3), &matrix);
    EXPECT_EQ(matrix.columns(), 3);
    EXPECT_EQ(matrix.depth(), depth + 1);
  }
}

TEST_P(PackedMatrixTest, OperandsAreRoundedToTheNearestBf16AndHalfWayToTheEvenOne) {
  // 1 + 2^-8 is half way between 1 and the next bf16, and rounds to the even one, 1.
  const std::vector<float> row = {1.00390625f, 1.01171875f};
  std::vector<float> plain(2), rounded(2);
  std::vector<uint16_t> bits(2);
  StoreOperand(GetParam(), row.data(), 2, false, OperandType::kFp32, plain.data());
  StoreOperand(GetParam(), row.data(), 2, true, OperandType::kFp32, rounded.data());
  StoreOperand(GetParam(), row.data(), 2, false, OperandType::kBf16, bits.data());
  EXPECT_EQ(plain, row);
  EXPECT_EQ(rounded, (std::vector<float>{1.0f, 1.015625f}));
  EXPECT_EQ(bits, (std::vector<uint16_t>{0x3f80, 0x3f82}));
}

TEST_P(PackedMatrixTest, SpecialValuesAreRoundedByWholeRegistersAsOneByOne) {
  // {bits of the float, bits of the bf16}.
  const std::vector<std::pair<uint32_t, uint16_t>> cases = {
      {0x7f7fffffu, 0x7f7f},                         // the largest float stays finite
      {0xff7fffffu, 0xff7f}, {0x7f7f8000u, 0x7f7f},  // half way to infinity too
      {0x7f800000u, 0x7f80}, {0xff800000u, 0xff80},  // infinities
      {0x7f800001u, 0x7fc0}, {0xff800001u, 0xffc0},  // a NaN of low bits alone stays a NaN
      {0x7fc00000u, 0x7fc0}, {0x00000001u, 0x0000},  // the smallest float
      {0x00008000u, 0x0000}, {0x00018000u, 0x0002},  // half way between two that are not normal
      {0x80000000u, 0x8000},                         // -0
      {0x3f808000u, 0x3f80}, {0x3f818000u, 0x3f82},  // half way
      {0x3f808001u, 0x3f81}, {0x3f807fffu, 0x3f80},  // just past it, and just before
      {0xbf818000u, 0xbf82}};
  const int64_t n = 2 * std::ssize(cases) + 1;  // two registers and a rest, with other neighbours
  std::vector<float> row;
  for (int64_t i = 0; i < n; ++i) {
    row.push_back(std::bit_cast<float>(cases[static_cast<size_t>(i) % cases.size()].first));
  }
  std::vector<float> floats(row.size());
  std::vector<uint16_t> bits(row.size());
  StoreOperand(GetParam(), row.data(), n, true, OperandType::kFp32, floats.data());
  StoreOperand(GetParam(), row.data(), n, true, OperandType::kBf16, bits.data());
  for (size_t i = 0; i < row.size(); ++i) {
    const uint16_t expected = cases[i % cases.size()].second;
    EXPECT_EQ(bits[i], expected) << "value " << i;
    EXPECT_EQ(std::bit_cast<uint32_t>(floats[i]), uint32_t{expected} << 16) << "value " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, PackedMatrixTest, ::testing::ValuesIn(SupportedInstructionSets()),
                         [](const auto& info) {
                           return std::string(InstructionSetName(info.param));
                         });

}  // namespace
}  // namespace tandem
