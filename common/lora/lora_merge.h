// MergeLora: the weights of a linear layer with its adapter merged in. One definition for the trainer
// (pushes, `exact`), export and the rollout server, which therefore have the same bits. Pure.
#pragma once

#include <cstdint>
#include <string_view>

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

// What an adapter did to a weight: sums over its elements, with u = s B A as it was added and
// d = served - base after rounding.
struct LoraEffect {
  double squared_change = 0;  // sum of u^2
  double arrived = 0;         // sum of d u: equal to squared_change where rounding loses nothing
  double squared_loss = 0;    // sum of (d - u)^2
  int64_t changed = 0;        // elements with d != 0

  LoraEffect& operator+=(const LoraEffect& other);
};

// MergeLora of features [first, first + rows) into a weight that is served in bf16 or fp32: `base` and
// `served` begin at feature `first`. bf16 is rounded as a push rounds: to nearest, or with the dither
// of tensor `name` (bf16_rounding.h). The sums are made in the order of the elements.
LoraEffect ServeMerged(const LoraFactors& adapter, std::string_view name, bool dither,
                       int64_t first, int64_t rows, const uint16_t* base, uint16_t* served);
LoraEffect ServeMerged(const LoraFactors& adapter, std::string_view name, bool dither,
                       int64_t first, int64_t rows, const float* base, float* served);

}  // namespace tandem
