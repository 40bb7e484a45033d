// Vector arithmetic of the trainer's CPU kernels: a small matrix product, and an exponential that
// the compiler vectorises (common/tensor/vector_exp.h). Free of LibTorch; everything here is pure.
#pragma once

#include <cstdint>

#include "trainer/policy/cpu/vector_exp.h"

namespace tandem::trainer {

// C[m, n] = A[m, k] B[k, n], or C += with `accumulate`. A's element (i, l) is a[i * a_row + l *
// a_col], so a transposed A costs nothing; B and C are row-major with row strides ldb and ldc. The
// order of the sum over k is fixed: the result does not depend on threads.
void SmallMatmul(int64_t m, int64_t n, int64_t k, const float* a, int64_t a_row, int64_t a_col,
                 const float* b, int64_t ldb, float* c, int64_t ldc, bool accumulate);

}  // namespace tandem::trainer
