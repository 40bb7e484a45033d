// RunMatmul over (dtype, shape) rows: every output has the bits of one chain of fused
// multiply-adds, whatever the batch.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/device/device_memory.h"

namespace tandem::cuda {
namespace {

template <typename T>
class MatmulKernel : public ::testing::Test {
 public:
  static constexpr Element kElement = sizeof(T) == 2 ? Element::kBf16 : Element::kFp32;

  static std::vector<T> Values(int64_t size, uint32_t seed) {
    if constexpr (sizeof(T) == 2) {
      return Bf16Of(Normal(static_cast<size_t>(size), seed));
    } else {
      return Normal(static_cast<size_t>(size), seed);
    }
  }

  // Rows [first, first + count) of x, in one call.
  static std::vector<float> Products(const std::vector<T>& x, const std::vector<T>& weight,
                                     int64_t inner, int64_t first, int64_t count) {
    const DeviceArray<T> rows(
        std::vector<T>(x.begin() + first * inner, x.begin() + (first + count) * inner));
    const DeviceArray<T> d_weight(weight);
    const auto outer = static_cast<int64_t>(weight.size()) / inner;
    const DeviceArray<float> out(static_cast<size_t>(count * outer), NAN);
    RunMatmul({.x = rows.data(),
               .weight = d_weight.data(),
               .element = kElement,
               .rows = count,
               .inner = inner,
               .outer = outer,
               .out = out.data()},
              nullptr);
    return out.Read();
  }
};
using Elements = ::testing::Types<float, uint16_t>;
TYPED_TEST_SUITE(MatmulKernel, Elements);

struct Shape {
  int64_t rows, inner, outer;
};

TYPED_TEST(MatmulKernel, AddsTheProductsOneAfterTheOther) {
  // One tile, incomplete tiles, more rows than the small tile is for, and inner dimensions that are
  // and are not multiples of a step.
  const Shape shapes[] = {{1, 8, 1},     {3, 72, 33},  {16, 64, 32}, {17, 200, 31},
                          {32, 576, 40}, {33, 72, 70}, {64, 32, 64}, {70, 104, 65}};
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(::testing::Message() << shape.rows << " " << shape.inner << " " << shape.outer);
    const auto x = this->Values(shape.rows * shape.inner, 1);
    const auto weight = this->Values(shape.outer * shape.inner, 2);
    const std::vector<float> a = FloatsOf(x), b = FloatsOf(weight);
    const std::vector<float> got = this->Products(x, weight, shape.inner, 0, shape.rows);
    for (int64_t n = 0; n < shape.rows; ++n) {
      for (int64_t o = 0; o < shape.outer; ++o) {
        float want = 0;
        for (int64_t i = 0; i < shape.inner; ++i) {
          want = std::fma(a[n * shape.inner + i], b[o * shape.inner + i], want);
        }
        ASSERT_EQ(got[n * shape.outer + o], want) << n << " " << o;
      }
    }
  }
}

TYPED_TEST(MatmulKernel, GivesARowTheSameBitsAloneAndInCompany) {
  constexpr int64_t kRows = 40, kInner = 136, kOuter = 50;
  const auto x = this->Values(kRows * kInner, 1), weight = this->Values(kOuter * kInner, 2);
  const std::vector<float> together = this->Products(x, weight, kInner, 0, kRows);
  for (const int64_t count : {1, 2, 5, 20}) {
    for (int64_t first = 0; first < kRows; first += count) {
      const std::vector<float> some = this->Products(x, weight, kInner, first, count);
      const auto begin = together.begin() + first * kOuter;
      ASSERT_EQ(some, std::vector<float>(begin, begin + count * kOuter)) << first << " " << count;
    }
  }
}

}  // namespace
}  // namespace tandem::cuda
