// ChangeProduct: sizes and distances of what adapters add to a weight, without making that weight.
// One definition for the trainer, and for the rollout server that proves what it applied. Pure.
#pragma once

#include <cstdint>

#include "common/lora/lora_merge.h"

namespace tandem {

// <s B A, s' B' A'> over all elements of a weight [out, in]. With two equal adapters it is the squared
// size of what one adds; the squared distance of two is <x, x> - 2 <x, y> + <y, y>. In double, as
// tr(A'^T B'^T B A) = sum over j, k of (B^T B')[j, k] (A A'^T)[j, k]. Both have the same `in`.
double ChangeProduct(const LoraFactors& one, const LoraFactors& other, int64_t out);

}  // namespace tandem
