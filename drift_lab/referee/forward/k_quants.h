// K-quants: weights as llama.cpp's q4_K and q6_K store them, in super-blocks of 256. Used by
// rounded_tensors.cc. Pure. The searches for scales are those of quantize_row_q4_K_ref and
// quantize_row_q6_K_ref (ggml-quants.c of llama.cpp, without an importance matrix).
#pragma once

#include <cstddef>
#include <span>

namespace tandem::drift {

inline constexpr size_t kSuperBlock = 256;

// Each replaces 256 weights by the values that the format gives back.
// Eight blocks of 32: four bits, a scale and a minimum of six bits each.
void RoundToQ4K(std::span<float, kSuperBlock> weights);
// Sixteen blocks of 16: six bits, a scale of eight bits each.
void RoundToQ6K(std::span<float, kSuperBlock> weights);

}  // namespace tandem::drift
