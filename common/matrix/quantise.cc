#include "common/matrix/quantise.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "common/matrix/e4m3.h"
#include "common/tensor/bf16_rounding.h"

namespace tandem {
namespace {

// The scale for sizes up to `largest`, or 0 when every value is to be 0.
float ScaleOf(float largest, float top) { return std::isfinite(largest) ? largest / top : 0; }

// What is stored as the scale of a row whose quantisation divided by `scale`.
float StoredScale(float largest, float scale) {
  return std::isfinite(largest) ? scale : std::numeric_limits<float>::quiet_NaN();
}

// The nearest integer of a value of a size below 2^22, ties to even: adding 1.5 * 2^23 leaves no
// fraction. Unlike std::rint, loops with it vectorise without SSE4.
float NearestInteger(float value) {
  constexpr float kRound = 12582912.0f;
  return (value + kRound) - kRound;
}

void RoundToIntegers(const float* row, int64_t n, float scale, float top, int8_t* values) {
  if (!(scale > 0)) {
    std::fill_n(values, n, int8_t{0});
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    const float value = std::min(std::max(NearestInteger(row[i] / scale), -top), top);
    values[i] = static_cast<int8_t>(value);
  }
}

}  // namespace

// As bits, sizes are ordered like numbers, and NaN is the largest.
float LargestSize(const float* row, int64_t n) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(row[i]) & 0x7fffffffu);
  }
  return std::bit_cast<float>(largest);
}

float QuantiseInt8(const float* row, int64_t n, int8_t* values) {
  const float largest = LargestSize(row, n), scale = ScaleOf(largest, 127.0f);
  RoundToIntegers(row, n, scale, 127.0f, values);
  return StoredScale(largest, scale);
}

float QuantiseE4m3(const float* row, int64_t n, uint8_t* codes) {
  const float largest = LargestSize(row, n), scale = ScaleOf(largest, kLargestE4m3);
  if (!(scale > 0)) {
    std::fill_n(codes, n, uint8_t{0});
  } else {
    for (int64_t i = 0; i < n; ++i) codes[i] = NearestE4m3(row[i] / scale);
  }
  return StoredScale(largest, scale);
}

float QuantiseInt4(const float* row, int64_t n, int8_t* values) {
  const float largest = LargestSize(row, n);
  const float scale = Bf16ToFloat(NearestBf16(ScaleOf(largest, 7.0f)));
  RoundToIntegers(row, n, scale, 7.0f, values);
  return StoredScale(largest, scale);
}

void FakeQuantise(const WeightFormat& format, const float* row, int64_t n, float* out) {
  std::vector<int8_t> values(static_cast<size_t>(n));
  switch (format.scheme) {
    case WeightScheme::kWide:
      if (out != row) std::copy_n(row, n, out);
      return;
    case WeightScheme::kInt8: {
      const float scale = QuantiseInt8(row, n, values.data());
      for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(values[i]) * scale;
      return;
    }
    case WeightScheme::kFp8E4m3: {
      auto* codes = reinterpret_cast<uint8_t*>(values.data());
      const float scale = QuantiseE4m3(row, n, codes);
      for (int64_t i = 0; i < n; ++i) out[i] = E4m3ToFloat(codes[i]) * scale;
      return;
    }
    case WeightScheme::kInt4Group:
      for (int64_t first = 0; first < n; first += format.group) {
        const int64_t count = std::min(format.group, n - first);
        const float scale = QuantiseInt4(row + first, count, values.data());
        for (int64_t i = 0; i < count; ++i) out[first + i] = static_cast<float>(values[i]) * scale;
      }
      return;
  }
}

}  // namespace tandem
