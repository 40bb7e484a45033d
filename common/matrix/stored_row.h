// A stored row: the weights of one output feature as a quantised matrix holds them, in the bytes that
// a weight push sends and a checkpoint could hold. Pure.
//
//   kInt8, kFp8E4m3  depth values of a byte, then the scale (fp32)
//   kInt4Group       depth / 2 bytes, the first value of each pair in the lower half, as value + 8;
//                    then a scale (bf16) for each group
#pragma once

#include <cstdint>

#include "common/matrix/weight_format.h"

namespace tandem {

// Bytes of a stored row. `format` is not kWide, and takes the depth (PackedMatrix::CanPack).
int64_t StoredRowBytes(const WeightFormat& format, int64_t depth);

// Quantises row [depth] (quantise.h) to out [StoredRowBytes].
void StoreRow(const WeightFormat& format, const float* row, int64_t depth, uint8_t* out);

// The values of a stored row of kInt4Group from element `first` on, `n` (even) of them, in [-8, 7].
void LoadInt4(const uint8_t* row, int64_t first, int64_t n, int8_t* values);

}  // namespace tandem
