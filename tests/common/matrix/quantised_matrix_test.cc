#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/matrix/packed_matrix.h"
#include "common/matrix/quantise.h"
#include "common/tensor/bf16_rounding.h"

namespace tandem {
namespace quantised_matrix {
namespace {

using Rows = std::vector<std::vector<float>>;

constexpr WeightFormat kInt8 = {WeightScheme::kInt8};
constexpr WeightFormat kFp8 = {WeightScheme::kFp8E4m3};
constexpr WeightFormat kInt4 = {WeightScheme::kInt4Group, 32};
constexpr WeightFormat kInt4Of64 = {WeightScheme::kInt4Group, 64};
constexpr WeightFormat kFormats[] = {kInt8, kFp8, kInt4, kInt4Of64};

Rows RandomRows(int64_t n, int64_t depth, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Rows rows(n, std::vector<float>(depth));
  for (auto& row : rows) {
    for (float& x : row) x = Bf16ToFloat(NearestBf16(normal(random)));
  }
  return rows;
}

PackedMatrix Packed(const Rows& weights, WeightFormat format) {
  std::vector<const float*> rows;
  for (const auto& row : weights) rows.push_back(row.data());
  return PackedMatrix(rows, static_cast<int64_t>(weights[0].size()), format);
}

// Rows as an operand, with the memory that it points to.
struct Stored {
  std::vector<char> data;
  std::vector<float> scales;
  std::vector<int32_t> sums;
  Operand operand;
};

Stored Store(InstructionSet set, const Rows& x, OperandType type) {
  const auto n = static_cast<int64_t>(x.size()), depth = static_cast<int64_t>(x[0].size());
  const int64_t stride = type == OperandType::kInt8 ? Int8Stride(depth) : depth;
  Stored stored;
  stored.data.resize(static_cast<size_t>(n * stride * OperandBytes(type)));
  stored.scales.resize(static_cast<size_t>(n));
  stored.sums.resize(static_cast<size_t>(n * Int8Sums(depth)));
  for (int64_t r = 0; r < n; ++r) {
    char* out = stored.data.data() + r * stride * OperandBytes(type);
    if (type == OperandType::kInt8) {
      stored.scales[r] = StoreInt8Operand(set, x[r].data(), depth, reinterpret_cast<int8_t*>(out),
                                          stored.sums.data() + r * Int8Sums(depth));
    } else {
      StoreOperand(set, x[r].data(), depth, false, type, out);
    }
  }
  stored.operand = {type, stored.data.data(), stride, stored.scales.data(), stored.sums.data()};
  return stored;
}

// Every output of every row, [rows][columns].
Rows Product(InstructionSet set, const PackedMatrix& matrix, const Rows& x, OperandType type) {
  const Stored stored = Store(set, x, type);
  const auto n = static_cast<int64_t>(x.size());
  const int64_t width = matrix.num_tiles() * PackedMatrix::kTileColumns;
  std::vector<float> out(static_cast<size_t>(n * width));
  for (int64_t tile = 0; tile < matrix.num_tiles(); ++tile) {
    const void* next = tile + 1 < matrix.num_tiles() ? matrix.TileAddress(tile + 1) : nullptr;
    matrix.MultiplyTile(set, tile, stored.operand, n,
                        out.data() + tile * PackedMatrix::kTileColumns, width, next);
  }
  Rows result;
  for (int64_t r = 0; r < n; ++r) {
    result.emplace_back(out.begin() + r * width, out.begin() + r * width + matrix.columns());
  }
  return result;
}

std::vector<OperandType> OperandTypes(InstructionSet set, const PackedMatrix& matrix) {
  std::vector<OperandType> types = {OperandType::kFp32};
  if (matrix.depth() % 2 == 0 && RoundedOperandType(set) == OperandType::kBf16) {
    types.push_back(OperandType::kBf16);
  }
  if (matrix.format().scheme != WeightScheme::kFp8E4m3) types.push_back(OperandType::kInt8);
  return types;
}

std::string Name(WeightFormat format, OperandType type) {
  return absl::StrCat(std::string(WeightSchemeName(format.scheme)), " group ", format.group,
                      " operand ", static_cast<int>(type));
}

class QuantisedMatrixTest : public ::testing::TestWithParam<InstructionSet> {};

TEST_P(QuantisedMatrixTest, GivesTheProductWorkedOutByHand) {
  // Scales: 1 (127 / 127), 2 (254 / 127); the second row of weights becomes 254, 0 (1 / 2 is a tie),
  // 4 (3 / 2 rounds to 2), -4. x is whole numbers up to 127, so int8 holds it as it is.
  const Rows weights = {{127, 1, -2, 3}, {254, 1, 3, -5}};
  const Rows x = {{1, 2, 3, 127}, {0, -127, 1, 1}};
  const Rows want = {{127 + 2 - 6 + 381, 254 + 12 - 508}, {-127 - 2 + 3, 4 - 4}};
  const PackedMatrix matrix = Packed(weights, kInt8);
  for (const OperandType type : OperandTypes(GetParam(), matrix)) {
    EXPECT_EQ(Product(GetParam(), matrix, x, type), want) << Name(kInt8, type);
  }
}

TEST_P(QuantisedMatrixTest, WeightOnlyProductsAgreeWithDequantisedWeightsInDoublePrecision) {
  for (const WeightFormat format : kFormats) {
    for (const int64_t depth : {8, 32, 40, 96, 136}) {
      for (const int64_t columns : {1, 16, 17, 50}) {
        const Rows weights = RandomRows(columns, depth, 1);
        const PackedMatrix matrix = Packed(weights, format);
        for (const int64_t n : {1, 2, 3, 5, 7, 13, 31}) {
          const Rows x = RandomRows(n, depth, 2);
          for (const OperandType type : OperandTypes(GetParam(), matrix)) {
            if (type == OperandType::kInt8) continue;
            const Rows got = Product(GetParam(), matrix, x, type);
            for (int64_t c = 0; c < columns; ++c) {
              std::vector<float> w(depth);
              FakeQuantise(format, weights[c].data(), depth, w.data());
              for (int64_t r = 0; r < n; ++r) {
                double sum = 0, size = 0;
                for (int64_t k = 0; k < depth; ++k) {
                  sum += static_cast<double>(x[r][k]) * w[k];
                  size += std::fabs(static_cast<double>(x[r][k]) * w[k]);
                }
                ASSERT_NEAR(got[r][c], sum, 1e-6 * size + 1e-30)
                    << Name(format, type) << " depth " << depth << " row " << r << " of " << n
                    << " column " << c;
              }
            }
          }
        }
      }
    }
  }
}

// What the header promises for int8 operands, in 64-bit integers and single float operations.
float IntegerProduct(const std::vector<float>& x, const std::vector<float>& weights,
                     WeightFormat format) {
  const auto depth = static_cast<int64_t>(x.size());
  std::vector<int8_t> xs(depth), ws(depth);
  const float x_scale = QuantiseInt8(x.data(), depth, xs.data());
  if (format.scheme == WeightScheme::kInt8) {
    const float scale = QuantiseInt8(weights.data(), depth, ws.data());
    int64_t sum = 0;
    for (int64_t k = 0; k < depth; ++k) sum += int64_t{xs[k]} * ws[k];
    const volatile float scaled = static_cast<float>(sum) * scale;
    return scaled * x_scale;
  }
  volatile float total = 0;
  for (int64_t first = 0; first < depth; first += format.group) {
    const int64_t count = std::min(format.group, depth - first);
    const float scale = QuantiseInt4(weights.data() + first, count, ws.data());
    int64_t sum = 0;
    for (int64_t k = 0; k < count; ++k) sum += int64_t{xs[first + k]} * ws[k];
    const volatile float part = static_cast<float>(sum) * scale;
    total = total + part;
  }
  return total * x_scale;
}

TEST_P(QuantisedMatrixTest, ProductsOfInt8RowsAreThoseOfIntegerArithmeticExactly) {
  for (const WeightFormat format : {kInt8, kInt4, kInt4Of64}) {
    for (const int64_t depth : {8, 40, 104, 576}) {
      const Rows weights = RandomRows(50, depth, 3), x = RandomRows(15, depth, 4);
      const Rows got = Product(GetParam(), Packed(weights, format), x, OperandType::kInt8);
      for (size_t r = 0; r < x.size(); ++r) {
        for (size_t c = 0; c < weights.size(); ++c) {
          ASSERT_EQ(got[r][c], IntegerProduct(x[r], weights[c], format))
              << Name(format, OperandType::kInt8) << " depth " << depth << " row " << r
              << " column " << c;
        }
      }
    }
  }
}

TEST_P(QuantisedMatrixTest, Int8TakesDepthsThatAreNoMultipleOfFour) {
  const Rows weights = RandomRows(20, 7, 3), x = RandomRows(3, 7, 4);
  const Rows got = Product(GetParam(), Packed(weights, kInt8), x, OperandType::kInt8);
  for (size_t r = 0; r < x.size(); ++r) {
    for (size_t c = 0; c < weights.size(); ++c) {
      ASSERT_EQ(got[r][c], IntegerProduct(x[r], weights[c], kInt8));
    }
  }
}

TEST_P(QuantisedMatrixTest, TheLargestSumsDoNotOverflow) {
  const std::vector<float> row(65536, 1.0f);  // 127 x 127 x 65536 is just below 2^30
  const Rows got = Product(GetParam(), Packed({row}, kInt8), {row}, OperandType::kInt8);
  EXPECT_NEAR(got[0][0], 65536.0f, 0.01f);
}

TEST_P(QuantisedMatrixTest, ARowsBitsDoNotDependOnItsPlaceOrOnHowManyRowsThereAre) {
  const Rows x = RandomRows(40, 576, 3), weights = RandomRows(48, 576, 4);
  for (const WeightFormat format : kFormats) {
    const PackedMatrix matrix = Packed(weights, format);
    for (const OperandType type : OperandTypes(GetParam(), matrix)) {
      const Rows together = Product(GetParam(), matrix, x, type);
      for (size_t r = 0; r < x.size(); ++r) {
        ASSERT_EQ(Product(GetParam(), matrix, {x[r]}, type)[0], together[r])
            << Name(format, type) << " row " << r;
      }
      const Rows turned(x.rbegin(), x.rend());
      const Rows backwards = Product(GetParam(), matrix, turned, type);
      ASSERT_EQ(Rows(backwards.rbegin(), backwards.rend()), together);
    }
  }
}

TEST_P(QuantisedMatrixTest, WeightsWithANaNGiveNaNAsWithoutQuantisation) {
  Rows weights = RandomRows(3, 64, 1);
  weights[1][7] = std::numeric_limits<float>::quiet_NaN();
  for (const WeightFormat format : kFormats) {
    const PackedMatrix matrix = Packed(weights, format);
    for (const OperandType type : OperandTypes(GetParam(), matrix)) {
      const std::vector<float> got = Product(GetParam(), matrix, RandomRows(1, 64, 2), type)[0];
      EXPECT_FALSE(std::isnan(got[0])) << Name(format, type);
      EXPECT_TRUE(std::isnan(got[1])) << Name(format, type);
      EXPECT_FALSE(std::isnan(got[2])) << Name(format, type);
    }
  }
}

TEST_P(QuantisedMatrixTest, EveryInstructionSetStoresTheSameInt8Operand) {
  for (const int64_t depth : {1, 15, 33, 64, 577}) {
    Rows x = RandomRows(3, depth, 5);
    std::fill(x[1].begin(), x[1].end(), 0.0f);
    x[2][0] = std::numeric_limits<float>::infinity();
    const Stored want = Store(InstructionSet::kScalar, x, OperandType::kInt8);
    const Stored got = Store(GetParam(), x, OperandType::kInt8);
    EXPECT_EQ(got.data, want.data) << depth;
    EXPECT_EQ(got.sums, want.sums) << depth;
    EXPECT_EQ(got.scales[0], want.scales[0]);
    EXPECT_EQ(got.scales[1], 0.0f);
    EXPECT_TRUE(std::isnan(got.scales[2]));
  }
}

TEST(Int16OperandTest, TwoRowsOfInt8AddUpToTheRowIn16Bits) {
  // scale 326.39 / 32639 = 0.01: 1 is 100 = 0 * 256 + 100; 2 is 200 = 256 - 56; -3 is -300 = -256 - 44.
  const std::vector<float> row = {326.39f, 1, 2, -3};
  std::vector<int8_t> out(2 * Int8Stride(4));
  std::vector<float> scales(2);
  std::vector<int32_t> sums(2 * Int8Sums(4));
  StoreInt16Operand(row.data(), 4, out.data(), scales.data(), sums.data());
  EXPECT_EQ(std::vector<int8_t>(out.begin(), out.begin() + 4),
            (std::vector<int8_t>{127, 0, 1, -1}));
  EXPECT_EQ(std::vector<int8_t>(out.begin() + 64, out.begin() + 68),
            (std::vector<int8_t>{127, 100, -56, -44}));
  EXPECT_NEAR(scales[1], 0.01f, 1e-8f);
  EXPECT_EQ(scales[0], 256 * scales[1]);
  EXPECT_EQ(sums, (std::vector<int32_t>{127, 127, 127, 127}));
}

TEST(Int16OperandTest, TheLargestAndTheSmallestValuesStayInRange) {
  const std::vector<float> row = {1, -1, 0.999985f, 1e-5f};
  std::vector<int8_t> out(2 * Int8Stride(4));
  std::vector<float> scales(2);
  std::vector<int32_t> sums(2 * Int8Sums(4));
  StoreInt16Operand(row.data(), 4, out.data(), scales.data(), sums.data());
  for (size_t i = 0; i < row.size(); ++i) {
    const float back = (256.0f * out[i] + out[64 + i]) * scales[1];
    EXPECT_NEAR(back, row[i], 0.5001f / 32639);
  }
}

TEST(QuantisedMatrixBitsTest, MachinesWithAndWithoutAvx512GiveTheSameBits) {
  const Rows x = RandomRows(9, 64, 7), weights = RandomRows(33, 64, 8);
  for (const WeightFormat format : kFormats) {
    const PackedMatrix matrix = Packed(weights, format);
    for (const InstructionSet set : SupportedInstructionSets()) {
      if (set == InstructionSet::kScalar) continue;  // has no fused multiply-add
      EXPECT_EQ(Product(set, matrix, x, OperandType::kFp32),
                Product(InstructionSet::kAvx2, matrix, x, OperandType::kFp32))
          << Name(format, OperandType::kFp32);
    }
  }
}

TEST(QuantisedMatrixLayoutTest, AColumnComesBackAsFakeQuantiseGivesIt) {
  const Rows weights = RandomRows(35, 72, 9);
  for (const WeightFormat format : kFormats) {
    const PackedMatrix matrix = Packed(weights, format);
    for (const int64_t c : {0, 15, 16, 34}) {
      std::vector<float> column(72), want(72);
      matrix.CopyColumn(c, column.data());
      FakeQuantise(format, weights[c].data(), 72, want.data());
      EXPECT_EQ(column, want) << Name(format, OperandType::kFp32);
    }
  }
}

TEST(QuantisedMatrixLayoutTest, WeightsOfEightAndFourBitsTakeAHalfAndAQuarterOfBf16) {
  const Rows weights = RandomRows(64, 1024, 9);
  const double bf16 = 64 * 1024 * 2;
  EXPECT_LE(static_cast<double>(Packed(weights, kInt8).bytes()), 0.51 * bf16);
  EXPECT_LE(static_cast<double>(Packed(weights, kFp8).bytes()), 0.51 * bf16);
  EXPECT_LE(static_cast<double>(Packed(weights, kInt4).bytes()), 0.29 * bf16);
}

TEST(QuantisedMatrixLayoutTest, NewWeightsTakeThePlaceOfThoseBefore) {
  for (const WeightFormat format : kFormats) {
    const Rows next = RandomRows(20, 40, 2);
    PackedMatrix matrix = Packed(RandomRows(20, 40, 1), format);
    const void* const memory = matrix.TileAddress(0);
    std::vector<const float*> rows;
    for (const auto& row : next) rows.push_back(row.data());
    matrix.Pack(rows, 40, format);
    EXPECT_EQ(matrix.TileAddress(0), memory) << "the same shape needs no fresh memory";
    const PackedMatrix fresh = Packed(next, format);
    ASSERT_EQ(matrix.stored().size(), fresh.stored().size());
    EXPECT_TRUE(std::ranges::equal(matrix.stored(), fresh.stored()));
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, QuantisedMatrixTest, ::testing::ValuesIn(SupportedInstructionSets()),
                         [](const auto& info) {
                           return std::string(InstructionSetName(info.param));
                         });

}  // namespace
}  // namespace quantised_matrix
}  // namespace tandem
