#include "common/lora/lora_merge.h"

#include <type_traits>
#include <vector>

#include "common/tensor/bf16_rounding.h"

// Loops are compiled for several instruction sets, and the widest is chosen when the program starts.
// Nothing is fused (CMakeLists.txt), so that all of them give the same bits. ThreadSanitizer is not
// ready yet when the choice is made.
#ifdef __SANITIZE_THREAD__
#define TANDEM_LORA_CLONES
#else
#define TANDEM_LORA_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#endif

namespace tandem {
namespace {

// change [in] = s * the sum over r, in order, of b[r] * a[r], four terms at a time.
TANDEM_LORA_CLONES void RowChange(const float* __restrict a, const float* __restrict b,
                                  int64_t rank, int64_t in, float scaling,
                                  float* __restrict change) {
  for (int64_t i = 0; i < in; ++i) change[i] = 0;
  int64_t r = 0;
  for (; r + 4 <= rank; r += 4) {
    const float *a0 = a + r * in, *a1 = a0 + in, *a2 = a1 + in, *a3 = a2 + in;
    const float b0 = b[r], b1 = b[r + 1], b2 = b[r + 2], b3 = b[r + 3];
    for (int64_t i = 0; i < in; ++i) {
      change[i] = (((change[i] + b0 * a0[i]) + b1 * a1[i]) + b2 * a2[i]) + b3 * a3[i];
    }
  }
  for (; r < rank; ++r) {
    const float* const row = a + r * in;
    for (int64_t i = 0; i < in; ++i) change[i] += b[r] * row[i];
  }
  for (int64_t i = 0; i < in; ++i) change[i] *= scaling;
}

// A base of -0 stays what it is where nothing is added.
float Sum(float base, float change) { return change == 0 ? base : base + change; }

float Widened(float value) { return value; }
float Widened(uint16_t bits) { return Bf16ToFloat(bits); }

template <typename T>
LoraEffect Serve(const LoraFactors& adapter, std::string_view name, bool dither, int64_t first,
                 int64_t rows, const T* base, T* served) {
  const uint64_t hash = DitherNameHash(name);
  std::vector<float> change(static_cast<size_t>(adapter.in));
  LoraEffect effect;
  for (int64_t row = 0; row < rows; ++row) {
    RowChange(adapter.a, adapter.b + (first + row) * adapter.rank, adapter.rank, adapter.in,
              adapter.scaling, change.data());
    double arrived = 0, loss = 0, squares = 0;
    int64_t changed = 0;
    for (int64_t i = 0; i < adapter.in; ++i) {
      const int64_t at = row * adapter.in + i;
      const float u = change[static_cast<size_t>(i)], from = Widened(base[at]);
      const float sum = Sum(from, u);
      if constexpr (std::is_same_v<T, float>) {
        served[at] = sum;
      } else {
        const auto index = static_cast<uint64_t>(first * adapter.in + at);
        served[at] = dither ? DitherBf16(sum, hash, index) : NearestBf16(sum);
      }
      const float d = Widened(served[at]) - from;
      squares += static_cast<double>(u) * u;
      arrived += static_cast<double>(d) * u;
      loss += static_cast<double>(d - u) * (d - u);
      changed += d != 0;
    }
    effect += {squares, arrived, loss, changed};
  }
  return effect;
}

}  // namespace

LoraEffect& LoraEffect::operator+=(const LoraEffect& other) {
  squared_change += other.squared_change;
  arrived += other.arrived;
  squared_loss += other.squared_loss;
  changed += other.changed;
  return *this;
}

void MergeLora(const LoraFactors& adapter, int64_t first, int64_t rows, const float* base,
               float* merged) {
  std::vector<float> change(static_cast<size_t>(adapter.in));
  for (int64_t row = 0; row < rows; ++row) {
    RowChange(adapter.a, adapter.b + (first + row) * adapter.rank, adapter.rank, adapter.in,
              adapter.scaling, change.data());
    for (int64_t i = 0; i < adapter.in; ++i) {
      const int64_t at = row * adapter.in + i;
      merged[at] = Sum(base[at], change[static_cast<size_t>(i)]);
    }
  }
}

LoraEffect ServeMerged(const LoraFactors& adapter, std::string_view name, bool dither,
                       int64_t first, int64_t rows, const uint16_t* base, uint16_t* served) {
  return Serve(adapter, name, dither, first, rows, base, served);
}

LoraEffect ServeMerged(const LoraFactors& adapter, std::string_view name, bool dither,
                       int64_t first, int64_t rows, const float* base, float* served) {
  return Serve(adapter, name, dither, first, rows, base, served);
}

}  // namespace tandem
