// Vec16: a vector of 16 floats whose operations have a fixed order, whatever registers the machine
// has. Kernel bodies are written on it once, marked TANDEM_INLINE, and instantiated inside
// functions that are marked for an instruction set (TANDEM_TARGET_*). Free of LibTorch.
//
// Only for .cc files of kernels, which are compiled with -fopenmp-simd -Wno-psabi.
#pragma once

#include <cstdint>

#define TANDEM_INLINE __attribute__((always_inline)) inline

#if defined(__x86_64__)
#define TANDEM_TARGET_AVX2 __attribute__((target("avx2,fma")))
#define TANDEM_TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#define TANDEM_TARGET_AVX512_BF16 \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")))
#define TANDEM_TARGET_AVX512_VNNI \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")))
#else  // SupportedInstructionSets has only kScalar there
#define TANDEM_TARGET_AVX2
#define TANDEM_TARGET_AVX512
#define TANDEM_TARGET_AVX512_BF16
#define TANDEM_TARGET_AVX512_VNNI
#endif

namespace tandem {

typedef float Vec16 __attribute__((vector_size(64)));
typedef float Vec16Unaligned __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t Int16 __attribute__((vector_size(64)));
typedef uint32_t Word16 __attribute__((vector_size(64)));
typedef uint16_t Half16 __attribute__((vector_size(32)));
typedef uint16_t Half16Unaligned __attribute__((vector_size(32), aligned(2), may_alias));

inline constexpr int64_t kLanes = 16;

// Vectors of kWidth floats, for tiles whose sums must stay in registers: gcc 12 moves a Vec16 that is
// wider than the registers of the machine through memory and general registers. 16 for AVX-512, 8 for
// AVX2, 4 for scalar code.
template <int kWidth>
struct Lanes {
  typedef float Float __attribute__((vector_size(4 * kWidth)));
  typedef float FloatUnaligned __attribute__((vector_size(4 * kWidth), aligned(4), may_alias));
  typedef uint32_t Word __attribute__((vector_size(4 * kWidth)));
  typedef uint32_t WordAligned __attribute__((vector_size(4 * kWidth), may_alias));
  typedef int32_t Int __attribute__((vector_size(4 * kWidth)));
  typedef uint16_t Half __attribute__((vector_size(2 * kWidth)));
  typedef uint16_t HalfUnaligned __attribute__((vector_size(2 * kWidth), aligned(2), may_alias));

  typedef int8_t Bytes __attribute__((vector_size(kWidth)));
  typedef int8_t BytesUnaligned __attribute__((vector_size(kWidth), aligned(1), may_alias));

  static TANDEM_INLINE Float Load(const float* p) {
    return *reinterpret_cast<const FloatUnaligned*>(p);
  }
  // Loads bf16 bits.
  static TANDEM_INLINE Float Load(const uint16_t* p) {
    const Half half = *reinterpret_cast<const HalfUnaligned*>(p);
    return FromBits(Widened(half) << 16);
  }
  // Loads int8.
  static TANDEM_INLINE Float Load(const int8_t* p) {
    const Bytes bytes = *reinterpret_cast<const BytesUnaligned*>(p);
    return __builtin_convertvector(WidenedInt(bytes), Float);
  }
  static TANDEM_INLINE void Store(float* p, Float v) { *reinterpret_cast<FloatUnaligned*>(p) = v; }
  static TANDEM_INLINE Word LoadWords(const uint32_t* p) {
    return *reinterpret_cast<const WordAligned*>(p);
  }
  static TANDEM_INLINE Float FromBits(Word bits) { return __builtin_bit_cast(Float, bits); }
  // Templates of their own, for gcc 12 does not take Half for a vector before kWidth is known. For
  // AVX-512 in assembler: gcc 12 widens into registers of half the size and puts them together, and
  // an intrinsic is not inlined into code for any set.
  template <typename Small>  // Bytes
  static TANDEM_INLINE Int WidenedInt(Small bytes) {
#if defined(__x86_64__)
    if constexpr (kWidth == 16) {
      Int wide;
      asm("vpmovsxbd %1, %0" : "=v"(wide) : "vm"(bytes));
      return wide;
    }
#endif
    return __builtin_convertvector(bytes, Int);
  }
  template <typename Small>  // Half
  static TANDEM_INLINE Word Widened(Small words) {
#if defined(__x86_64__)
    if constexpr (kWidth == 16) {
      Word wide;
      asm("vpmovzxwd %1, %0" : "=v"(wide) : "vm"(words));
      return wide;
    }
#endif
    return __builtin_convertvector(words, Word);
  }
};

// The floats with these bits. Not by std::bit_cast, which is a function for the base instruction set:
// where it is not inlined (without optimisation), it and a caller for AVX-512 disagree about how a
// vector is returned.
template <typename Bits>
TANDEM_INLINE Vec16 BitCast16(Bits bits) {
  return __builtin_bit_cast(Vec16, bits);
}

TANDEM_INLINE Vec16 Load16(const float* p) { return *reinterpret_cast<const Vec16Unaligned*>(p); }

// Loads bf16 bits.
TANDEM_INLINE Vec16 Load16(const uint16_t* p) {
  const Half16 half = *reinterpret_cast<const Half16Unaligned*>(p);
  return BitCast16(__builtin_convertvector(half, Word16) << 16);
}

TANDEM_INLINE void Store16(float* p, Vec16 v) { *reinterpret_cast<Vec16Unaligned*>(p) = v; }

TANDEM_INLINE Vec16 Splat16(float x) { return x - Vec16{}; }

// Loads the first `count` of 16 floats, and `rest` into the other lanes.
TANDEM_INLINE Vec16 LoadSome16(const float* p, int64_t count, float rest) {
  alignas(64) float lanes[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) lanes[i] = i < count ? p[i] : rest;
  return Load16(lanes);
}

TANDEM_INLINE void StoreSome16(float* p, int64_t count, Vec16 v) {
  for (int64_t i = 0; i < count; ++i) p[i] = v[i];
}

TANDEM_INLINE Vec16 Max16(Vec16 a, Vec16 b) { return a > b ? a : b; }

// The sum of the lanes in a fixed order: halves, quarters, pairs.
TANDEM_INLINE float SumLanes(Vec16 v) {
  alignas(64) float lanes[kLanes];
  Store16(lanes, v);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

TANDEM_INLINE float MaxLane(Vec16 v) {
  float largest = v[0];
  for (int i = 1; i < kLanes; ++i) largest = v[i] > largest ? v[i] : largest;
  return largest;
}

// e^x to about 2 units in the last place for x in [-87, 88]; Int is a vector of as many int32.
// Clamps x to that range, so the result is never infinite. The reduction and the polynomial are those
// of expf in the Cephes library (Moshier).
template <typename Int, typename Float>
TANDEM_INLINE Float ExpLanes(Float x) {
  x = x < -87.0f ? Float{} - 87.0f : x;
  x = x > 88.0f ? Float{} + 88.0f : x;
  const Float round = Float{} + 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const Float n = (x * 1.44269504088896341f + round) - round;
  const Float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Float p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const Float mantissa = p * r * r + r + 1.0f;
  const Int exponent = (__builtin_convertvector(n, Int) + 127) << 23;
  return mantissa * __builtin_bit_cast(Float, exponent);
}

// tanh x: a polynomial near 0 and 1 - 2 / (e^2x + 1) elsewhere, as tanhf of Cephes.
template <typename Int, typename Float>
TANDEM_INLINE Float TanhLanes(Float x) {
  const Float size = x < 0.0f ? -x : x;
  const Float far = 1.0f - 2.0f / (ExpLanes<Int>(size + size) + 1.0f);
  const Float s = x * x;
  Float p = s * -5.70498872745e-3f + 2.06390887954e-2f;
  p = p * s - 5.37397155531e-2f;
  p = p * s + 1.33314422036e-1f;
  p = p * s - 3.33332819422e-1f;
  const Float near = p * s * x + x;
  return size < 0.625f ? near : (x < 0.0f ? -far : far);
}

TANDEM_INLINE Vec16 Exp16(Vec16 x) { return ExpLanes<Int16>(x); }

}  // namespace tandem
