// Quantising a row of weights or activations to the numbers of WeightFormat, and back. Pure;
// deterministic. One definition for the engine that serves such weights, the trainer that fakes
// them, and the drift lab.
//
// A row or group with a NaN or an infinity has the scale NaN and the values 0, so that whatever is
// multiplied with it becomes NaN, as it would without quantisation.
#pragma once

#include <cstdint>

#include "common/matrix/weight_format.h"

namespace tandem {

// max |x|; infinite or NaN if any element is. 0 for none.
float LargestSize(const float* row, int64_t n);

// Row [n] -> values [n] in [-127, 127]; returns the scale, max |x| / 127, so that row[i] is about
// values[i] * scale. value = x / scale, rounded to nearest even.
float QuantiseInt8(const float* row, int64_t n, int8_t* values);

// Row [n] -> codes of e4m3 [n]; returns the scale, max |x| / 448.
float QuantiseE4m3(const float* row, int64_t n, uint8_t* codes);

// Row [n], of one group -> values [n] in [-7, 7]; returns the scale, max |x| / 7 rounded to bf16.
float QuantiseInt4(const float* row, int64_t n, int8_t* values);

// row [n] of one output feature -> out [n], the weights that `format` stores for it: stored value
// times scale, rounded once, to fp32. `out` may be `row`. kWide leaves them.
void FakeQuantise(const WeightFormat& format, const float* row, int64_t n, float* out);

}  // namespace tandem
