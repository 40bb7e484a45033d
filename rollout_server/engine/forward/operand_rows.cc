#include "rollout_server/engine/forward/operand_rows.h"

#include <algorithm>

namespace tandem::rollout {

OperandRows::OperandRows(InstructionSet set, bool round, int64_t width)
    : set_(set),
      round_(round),
      wide_(round ? RoundedOperandType(set) : OperandType::kFp32),
      width_(width) {}

void OperandRows::Reserve(int64_t rows) {
  const int64_t wide = width_ * OperandBytes(wide_);
  data_ = AlignedBuffer(rows * std::max(wide, Int8Stride(width_)));
  collected_ = AlignedBuffer(rows * width_ * 4);
  scales_ = AlignedBuffer(rows * 4);
  sums_ = AlignedBuffer(rows * Int8Sums(width_) * 4);
}

void OperandRows::StorePart(OperandType type, int64_t row, int64_t first, const float* values,
                            int64_t n) {
  if (type == OperandType::kInt8 || collects_) {
    std::copy_n(values, n, collected_.as<float>() + row * width_ + first);
  }
  if (type == OperandType::kInt8) return;
  StoreOperand(set_, values, n, round_, wide_,
               data_.as<char>() + (row * width_ + first) * OperandBytes(wide_));
}

void OperandRows::Quantise(int64_t row, const float* values) {
  scales_.as<float>()[row] =
      StoreInt8Operand(set_, values, width_, data_.as<int8_t>() + row * Int8Stride(width_),
                       sums_.as<int32_t>() + row * Int8Sums(width_));
}

void OperandRows::Finish(int64_t row) { Quantise(row, collected_.as<float>() + row * width_); }

void OperandRows::Store(OperandType type, int64_t row, const float* values) {
  if (type == OperandType::kInt8) {
    Quantise(row, values);
  } else {
    StoreOperand(set_, values, width_, round_, wide_,
                 data_.as<char>() + row * width_ * OperandBytes(wide_));
  }
}

void OperandRows::StoreInt16(int64_t row, const float* values) {
  StoreInt16Operand(values, width_, data_.as<int8_t>() + 2 * row * Int8Stride(width_),
                    scales_.as<float>() + 2 * row,
                    sums_.as<int32_t>() + 2 * row * Int8Sums(width_));
}

Operand OperandRows::All(OperandType type) const {
  const int64_t stride = type == OperandType::kInt8 ? Int8Stride(width_) : width_;
  return {type, data_.as<char>(), stride, scales_.as<float>(), sums_.as<int32_t>()};
}

}  // namespace tandem::rollout
