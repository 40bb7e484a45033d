// Operand: rows of inputs as the kernels of PackedMatrix read them. Pure.
#pragma once

#include <cstdint>

#include "common/tensor/instruction_set.h"

namespace tandem {

// The storage type of the rows that are multiplied.
enum class OperandType { kFp32, kBf16, kInt8 };

constexpr int64_t OperandBytes(OperandType type) {
  constexpr int64_t kBytes[] = {4, 2, 1};
  return kBytes[static_cast<size_t>(type)];
}

// The operand type for inputs of a bf16 matrix: bf16 if the machine has instructions for it, else
// fp32.
OperandType RoundedOperandType(InstructionSet set);

// Writes `row` [n] as an operand, kFp32 or kBf16. kBf16 rounds to nearest even; kFp32 does so too
// if `round` is set.
void StoreOperand(InstructionSet set, const float* row, int64_t n, bool round, OperandType type,
                  void* out);

// Rows of an int8 operand are this many elements apart.
constexpr int64_t Int8Stride(int64_t depth) { return (depth + 63) / 64 * 64; }

// The sums of a row of an int8 operand: that of all elements, then that of each 32 in a row.
inline constexpr int64_t kSumBlock = 32;
constexpr int64_t Int8Sums(int64_t depth) { return 1 + (depth + kSumBlock - 1) / kSumBlock; }

// Rows [n, depth], `stride` elements apart.
struct Operand {
  OperandType type = OperandType::kFp32;
  const void* data = nullptr;
  int64_t stride = 0;
  // For kInt8, whose rows are zero from `depth` to Int8Stride(depth):
  const float* scales = nullptr;  // [n]
  const int32_t* sums = nullptr;  // [n, Int8Sums(depth)]

  // The rows from `row` on.
  Operand From(int64_t row, int64_t depth) const {
    Operand rest = *this;
    rest.data = static_cast<const char*>(data) + row * stride * OperandBytes(type);
    if (type == OperandType::kInt8) {
      rest.scales += row;
      rest.sums += row * Int8Sums(depth);
    }
    return rest;
  }
};

// Quantises `row` [n] to an int8 operand: QuantiseInt8 into out [Int8Stride(n)], with its sums
// [Int8Sums(n)]. Returns the scale.
float StoreInt8Operand(InstructionSet set, const float* row, int64_t n, int8_t* out, int32_t* sums);

// The same with 16 bits: two rows of an int8 operand, whose products add up to the row's. out
// [2, Int8Stride(n)], scales [2], sums [2, Int8Sums(n)]. With s = max |x| / 32639, row[i] is about
// s q[i] for the nearest integer q[i] in [-32639, 32639], and q = 256 h + l with h and l in [-128,
// 127]: the first row is h with the scale 256 s, the second is l with s.
void StoreInt16Operand(const float* row, int64_t n, int8_t* out, float* scales, int32_t* sums);

}  // namespace tandem
