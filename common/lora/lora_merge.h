// MergeLora: the weights of a linear layer with its adapter merged in. One definition for the trainer
// (export, `exact`) and the rollout server, which therefore have the same bits. Pure.
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
// rank in order, times s, added to the base in fp32, and for bf16 rounded once, to nearest even. What
// an adapter does not change keeps its bits.
// `base` and `merged` begin at feature `first` and may be the same memory. No operation is fused, so
// all machines give the same bits. Threads may divide the rows.
void MergeLora(const LoraFactors& adapter, int64_t first, int64_t rows, const float* base,
               float* merged);
void MergeLora(const LoraFactors& adapter, int64_t first, int64_t rows, const uint16_t* base,
               uint16_t* merged);

}  // namespace tandem
