// MergeLora: the weights of a linear layer with its adapter merged in. One definition for the trainer
// (pushes, `exact`), export and the rollout server, which therefore have the same bits. Pure.
#pragma once

#include <cstdint>

namespace tandem {

// An adapter of a layer [out, in]: A [rank, in] and B [out, rank], fp32, and s.
struct LoraFactors {
  const float* a = nullptr;
  const float* b = nullptr;
  int64_t rank = 0, in = 0;
  float scaling = 1;
};

// merged [rows, in] = base + s * B A for the output features [first, first + rows): the sum over the
// rank in order, times s, added to the base in fp32. What an adapter does not change keeps its bits.
// `base` and `merged` begin at feature `first` and may be the same memory. No operation is fused, so
// all machines give the same bits. Threads may divide the rows.
//
// A server of bf16 has base values that are bf16 already, and rounds the sum as it rounds every
// weight that is pushed to it (weight_cast.h): rounding to nearest would lose most of what a few
// updates change, which is often less than half a bf16 step of the base.
void MergeLora(const LoraFactors& adapter, int64_t first, int64_t rows, const float* base,
               float* merged);

}  // namespace tandem
