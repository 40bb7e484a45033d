#include "common/lora/lora_merge.h"

#include <algorithm>
#include <vector>

namespace tandem {

void MergeLora(const LoraFactors& adapter, int64_t first, int64_t rows, const float* base,
               float* merged) {
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
      const float from = base[row * in + i];
      merged[row * in + i] = change == 0 ? from : from + change;
    }
  }
}

}  // namespace tandem
