#include "common/tensor/machine_limits.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "common/base/clock.h"
#include "common/tensor/aligned_buffer.h"
#include "common/tensor/vector16.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tandem {
namespace {

constexpr int64_t kBytes = int64_t{1} << 28;
constexpr int kTries = 5;
// Independent sums: enough to hide the latency of an addition, and no more than registers hold.
constexpr int kSums = 24, kSumsAvx2 = 6, kSumsScalar = 3;
constexpr int64_t kRounds = 200'000;  // of kSums operations

// Reads n words. Returning their sum keeps the compiler from dropping the reads.
TANDEM_INLINE uint32_t ReadBody(const uint32_t* words, int64_t n) {
  Word16 sums[4] = {};
  for (int64_t i = 0; i + 64 <= n; i += 64) {
    __builtin_prefetch(words + i + 1024, 0, 2);
    __builtin_prefetch(words + i + 1040, 0, 2);
    __builtin_prefetch(words + i + 1056, 0, 2);
    __builtin_prefetch(words + i + 1072, 0, 2);
    for (int j = 0; j < 4; ++j) {
      sums[j] += *reinterpret_cast<const Lanes<16>::WordAligned*>(words + i + j * 16);
    }
  }
  return (sums[0] + sums[1] + sums[2] + sums[3])[0];
}

template <int kAtOnce>
TANDEM_INLINE float MultiplyAddBody(int64_t rounds) {
  Vec16 sums[kAtOnce];
  for (int i = 0; i < kAtOnce; ++i) sums[i] = Splat16(static_cast<float>(i));
  const Vec16 factor = Splat16(0.999f), addend = Splat16(0.001f);
  for (int64_t r = 0; r < rounds * (kSums / kAtOnce); ++r) {
#pragma GCC unroll 24
    for (int i = 0; i < kAtOnce; ++i) sums[i] = sums[i] * factor + addend;
  }
  Vec16 sum = {};
  for (const Vec16& one : sums) sum += one;
  return SumLanes(sum);
}

#define TANDEM_DEFINE_LIMITS(set, target, sums)                                              \
  target uint32_t Read##set(const uint32_t* words, int64_t n) { return ReadBody(words, n); } \
  target float MultiplyAdd##set(int64_t rounds) { return MultiplyAddBody<sums>(rounds); }

TANDEM_DEFINE_LIMITS(Scalar, , kSumsScalar)
TANDEM_DEFINE_LIMITS(Avx2, TANDEM_TARGET_AVX2, kSumsAvx2)
TANDEM_DEFINE_LIMITS(Avx512, TANDEM_TARGET_AVX512, kSums)

#if defined(__x86_64__)
TANDEM_TARGET_AVX512_BF16 float MultiplyAddPairs(int64_t rounds) {
  __m512 sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = _mm512_setzero_ps();
  const __m512bh factor = (__m512bh)_mm512_set1_epi32(0x3c003c00);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 24
    for (int i = 0; i < kSums; ++i) sums[i] = _mm512_dpbf16_ps(sums[i], factor, factor);
  }
  __m512 total = _mm512_setzero_ps();
  for (const __m512 one : sums) total = _mm512_add_ps(total, one);
  float lanes[16];
  _mm512_storeu_ps(lanes, total);
  return std::accumulate(lanes, lanes + 16, 0.0f);
}

// Half the sums, for gcc 12 does not keep 24 of integers in registers.
TANDEM_TARGET_AVX512_VNNI int32_t MultiplyAddBytes(int64_t rounds) {
  constexpr int kHalf = kSums / 2;
  __m512i sums[kHalf];
#pragma GCC unroll 24
  for (int i = 0; i < kHalf; ++i) sums[i] = _mm512_set1_epi32(i);
  const __m512i factor = _mm512_set1_epi32(0x01010101);
  for (int64_t r = 0; r < 2 * rounds; ++r) {
#pragma GCC unroll 24
    for (int i = 0; i < kHalf; ++i) sums[i] = _mm512_dpbusd_epi32(sums[i], factor, factor);
  }
  __m512i total = _mm512_setzero_si512();
#pragma GCC unroll 24
  for (int i = 0; i < kHalf; ++i) total = _mm512_add_epi32(total, sums[i]);
  int32_t lanes[16];
  _mm512_storeu_si512(lanes, total);
  return lanes[0];
}
#endif

// The least seconds of `work`, run by all members at once.
template <typename Work>
double BestSeconds(ThreadTeam& team, const Work& work) {
  double best = 1e30;
  for (int i = 0; i < kTries; ++i) {
    const double start = MonotonicSeconds();
    team.Run([&](ThreadTeam::Member& member) { work(member.index()); });
    best = std::min(best, MonotonicSeconds() - start);
  }
  return best;
}

}  // namespace

MachineLimits MeasureMachineLimits(ThreadTeam& team, InstructionSet set) {
  AlignedBuffer buffer(kBytes);
  buffer.Commit();  // pages that were never written would all be one page of zeros
  const int64_t words_each = kBytes / 4 / team.size() / 64 * 64;
  std::vector<double> sink(team.size() * 8);  // one cache line per member
  const auto& read = VariantFor(set, ReadScalar, ReadAvx2, ReadAvx512);
  const auto& multiply_add = VariantFor(set, MultiplyAddScalar, MultiplyAddAvx2, MultiplyAddAvx512);
  MachineLimits limits;
  limits.read_bytes_per_second =
      static_cast<double>(words_each * 4 * team.size()) / BestSeconds(team, [&](int index) {
        sink[index * 8] += read(buffer.as<uint32_t>() + index * words_each, words_each);
      });
  const double operations = 2.0 * 16 * kSums * kRounds * team.size();
  limits.flops_per_second =
      operations / BestSeconds(team, [&](int index) { sink[index * 8] += multiply_add(kRounds); });
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512Bf16) {
    limits.bf16_flops_per_second = 2 * operations / BestSeconds(team, [&](int index) {
                                     sink[index * 8] += MultiplyAddPairs(kRounds);
                                   });
  }
  if (set >= InstructionSet::kAvx512 && __builtin_cpu_supports("avx512vnni")) {
    limits.int8_ops_per_second = 4 * operations / BestSeconds(team, [&](int index) {
                                   sink[index * 8] += MultiplyAddBytes(kRounds);
                                 });
  }
#endif
  return limits;
}

MachineWork& MachineWork::operator+=(const MachineWork& other) {
  bytes += other.bytes;
  flops += other.flops;
  bf16_flops += other.bf16_flops;
  int8_ops += other.int8_ops;
  return *this;
}

MachineWork MachineWork::operator-(const MachineWork& other) const {
  return {bytes - other.bytes, flops - other.flops, bf16_flops - other.bf16_flops,
          int8_ops - other.int8_ops};
}

double RooflineSeconds(const MachineLimits& limits, const MachineWork& work) {
  const double bf16_peak = std::max(limits.flops_per_second, limits.bf16_flops_per_second);
  const double int8_peak = std::max(bf16_peak, limits.int8_ops_per_second);
  return std::max(work.bytes / limits.read_bytes_per_second, work.flops / limits.flops_per_second +
                                                                 work.bf16_flops / bf16_peak +
                                                                 work.int8_ops / int8_peak);
}

}  // namespace tandem
