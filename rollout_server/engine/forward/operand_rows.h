// OperandRows: the inputs of linear layers for the tokens of a step, each in the type that the
// matrix that reads them takes. Rows that are to be int8 are collected in fp32 first, because a
// row's scale is known only when all of it is there. Threads may write different parts of a row, and
// finish different rows.
#pragma once

#include <cstdint>

#include "common/matrix/operand.h"
#include "common/tensor/aligned_buffer.h"
#include "common/tensor/instruction_set.h"

namespace tandem::rollout {

class OperandRows {
 public:
  // `round`: rows that are not int8 are rounded to bf16.
  OperandRows(InstructionSet set, bool round, int64_t width);

  // Whether rows that are written in parts are also kept in fp32 (Collected).
  void Collect(bool on) { collects_ = on; }
  const float* Collected(int64_t row) const { return collected_.as<float>() + row * width_; }

  // Memory for `rows` rows. Their contents are lost.
  void Reserve(int64_t rows);

  // The type of rows that are not int8.
  OperandType wide_type() const { return wide_; }

  // Writes `n` values from element `first` of `row` on. Rows of kInt8 need Finish before they are
  // read.
  void StorePart(OperandType type, int64_t row, int64_t first, const float* values, int64_t n);
  void Finish(int64_t row);  // quantises what StorePart collected

  // Writes a whole row, finished.
  void Store(OperandType type, int64_t row, const float* values);
  // Writes rows 2 `row` and 2 `row` + 1 of type kInt8 (StoreInt16Operand).
  void StoreInt16(int64_t row, const float* values);

  Operand All(OperandType type) const;

 private:
  void Quantise(int64_t row, const float* values);

  const InstructionSet set_;
  const bool round_;
  bool collects_ = false;
  const OperandType wide_;
  const int64_t width_;
  AlignedBuffer data_, collected_, scales_, sums_;
};

}  // namespace tandem::rollout
