#include "common/lora/lora_merge.h"

#include <algorithm>
#include <vector>

#include "common/tensor/bf16_rounding.h"

namespace tandem {
namespace {

float Widened(float value) { return value; }
float Widened(uint16_t bits) { return Bf16ToFloat(bits); }
void Narrow(float value, float* out) { *out = value; }
void Narrow(float value, uint16_t* out) { *out = NearestBf16(value); }

template <typename T>
void Merge(const LoraFactors& adapter, int64_t first, int64_t rows, const T* base, T* merged) {
  const int64_t in = adapter.in;
  std::vector<float> sums(static_cast<size_t>(in));
  for (int64_t row = 0; row < rows; ++row) {
    const float* b = adapter.b + (first + row) * adapter.rank;
    std::ranges::fill(sums, 0.0f);
    for (int64_t r = 0; r < adapter.rank; ++r) {
      const float factor = b[r];
      const float* a = adapter.a + r * in;
      for (int64_t i = 0; i < in; ++i) sums[static_cast<size_t>(i)] += factor * a[i];
    }
    for (int64_t i = 0; i < in; ++i) {
      const float change = adapter.scaling * sums[static_cast<size_t>(i)];
      // A base of -0 stays what it is where nothing is added.
      const float from = Widened(base[row * in + i]);
      Narrow(change == 0 ? from : from + change, &merged[row * in + i]);
    }
  }
}

}  // namespace

void MergeLora(const LoraFactors& adapter, int64_t first, int64_t rows, const float* base,
               float* merged) {
  Merge(adapter, first, rows, base, merged);
}

void MergeLora(const LoraFactors& adapter, int64_t first, int64_t rows, const uint16_t* base,
               uint16_t* merged) {
  Merge(adapter, first, rows, base, merged);
}

}  // namespace tandem
