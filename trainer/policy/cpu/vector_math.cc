#include "trainer/policy/cpu/vector_math.h"

#include <algorithm>

#include "common/tensor/instruction_set.h"
#include "common/tensor/vector16.h"

namespace tandem::trainer {
namespace {

struct Operands {
  int64_t k;
  const float* a;
  int64_t a_row, a_col;
  const float* b;
  int64_t ldb;
  float* c;
  int64_t ldc;
  bool accumulate;
};

// A tile of kRows x (16 * kVecs) sums that stay in registers of kWidth floats over the whole inner
// dimension.
template <int kWidth, int kRows, int kVecs>
TANDEM_INLINE void Tile(const Operands& o, int64_t row, int64_t column) {
  using Vector = Lanes<kWidth>;
  constexpr int kParts = kVecs * 16 / kWidth;
  typename Vector::Float sums[kRows][kParts] = {};
  float* c = o.c + row * o.ldc + column;
  if (o.accumulate) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int i = 0; i < kParts; ++i) sums[r][i] = Vector::Load(c + r * o.ldc + i * kWidth);
    }
  }
  const float* a = o.a + row * o.a_row;
  const float* b = o.b + column;
  for (int64_t l = 0; l < o.k; ++l, b += o.ldb) {
#pragma GCC unroll 8
    for (int i = 0; i < kParts; ++i) {
      const typename Vector::Float bv = Vector::Load(b + i * kWidth);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) sums[r][i] += a[r * o.a_row + l * o.a_col] * bv;
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int i = 0; i < kParts; ++i) Vector::Store(c + r * o.ldc + i * kWidth, sums[r][i]);
  }
}

template <int kWidth, int kRows, int kVecs>
TANDEM_INLINE void ColumnPanel(const Operands& o, int64_t m, int64_t column) {
  int64_t row = 0;
  for (; row + kRows <= m; row += kRows) Tile<kWidth, kRows, kVecs>(o, row, column);
  for (; row + 2 <= m; row += 2) Tile<kWidth, 2, kVecs>(o, row, column);
  for (; row < m; ++row) Tile<kWidth, 1, kVecs>(o, row, column);
}

// The last columns, fewer than 16.
TANDEM_INLINE void ColumnTail(const Operands& o, int64_t m, int64_t begin, int64_t end) {
  for (int64_t row = 0; row < m; ++row) {
    float sums[16] = {};
    const int64_t count = end - begin;
    float* c = o.c + row * o.ldc + begin;
    if (o.accumulate) std::copy(c, c + count, sums);
    for (int64_t l = 0; l < o.k; ++l) {
      const float av = o.a[row * o.a_row + l * o.a_col];
      const float* b = o.b + l * o.ldb + begin;
      for (int64_t j = 0; j < count; ++j) sums[j] += av * b[j];
    }
    std::copy(sums, sums + count, c);
  }
}

// Tiles of kRows x (16 * kVecs): as many sums as the registers of an instruction set hold.
template <int kWidth, int kRows, int kVecs>
TANDEM_INLINE void Multiply(const Operands& o, int64_t m, int64_t n) {
  int64_t column = 0;
  for (; column + 16 * kVecs <= n; column += 16 * kVecs)
    ColumnPanel<kWidth, kRows, kVecs>(o, m, column);
  for (; column + 16 <= n; column += 16) ColumnPanel<kWidth, kRows, 1>(o, m, column);
  if (column < n) ColumnTail(o, m, column, n);
}

void MultiplyScalar(const Operands& o, int64_t m, int64_t n) { Multiply<4, 2, 1>(o, m, n); }
TANDEM_TARGET_AVX2 void MultiplyAvx2(const Operands& o, int64_t m, int64_t n) {
  Multiply<8, 6, 1>(o, m, n);
}
TANDEM_TARGET_AVX512 void MultiplyAvx512(const Operands& o, int64_t m, int64_t n) {
  Multiply<16, 6, 2>(o, m, n);
}

}  // namespace

void SmallMatmul(int64_t m, int64_t n, int64_t k, const float* a, int64_t a_row, int64_t a_col,
                 const float* b, int64_t ldb, float* c, int64_t ldc, bool accumulate) {
  static const auto multiply =
      VariantFor(ActiveInstructionSet(), &MultiplyScalar, &MultiplyAvx2, &MultiplyAvx512);
  multiply({k, a, a_row, a_col, b, ldb, c, ldc, accumulate}, m, n);
}

}  // namespace tandem::trainer
