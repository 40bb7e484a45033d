#include "common/model/token_distribution.h"

#include <algorithm>

#include "common/tensor/vector16.h"

// Idea: one fp32 sum over a vocabulary of 150 000 ids loses digits, and a sum in fp64 has half as
// many lanes. Terms are therefore summed in fp32 within blocks of kDistributionBlock ids, 16 lanes
// side by side, and the blocks' sums are added in fp64. The moments come from the same pass.
//
// Invariant: the order of additions depends on the vocabulary alone. Engine and trainer call the
// same code on a row, whatever the batch, so equal logits give equal log-probs, bit for bit. The
// block sums let the sampler find the block of its random number without another pass over the row.
namespace tandem {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

TANDEM_INLINE float LargestBody(const float* logits, int64_t n) {
  Vec16 largest[4];
  for (Vec16& one : largest) one = Splat16(kMinusInfinity);
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    for (int j = 0; j < 4; ++j) largest[j] = Max16(Load16(logits + i + j * 16), largest[j]);
  }
  for (; i < n; i += 16) {
    const Vec16 v =
        i + 16 <= n ? Load16(logits + i) : LoadSome16(logits + i, n - i, kMinusInfinity);
    largest[0] = Max16(v, largest[0]);
  }
  return MaxLane(Max16(Max16(largest[0], largest[1]), Max16(largest[2], largest[3])));
}

struct BlockSums {
  Vec16 mass = {}, first = {}, second = {};
};

template <bool kMoments>
TANDEM_INLINE Vec16 AddExps(Vec16 logits, float largest, float scale, BlockSums& sums) {
  // The largest term is 1, so terms below e^-87 do not count. NaN stays NaN.
  const Vec16 y = (logits - largest) * scale;
  const Vec16 clamped = y < -87.0f ? Splat16(-87.0f) : y;
  const Vec16 e = y < -87.0f ? Vec16{} : Exp16(clamped);
  sums.mass += e;
  if constexpr (kMoments) {
    const Vec16 ey = e * clamped;
    sums.first += ey;
    sums.second += ey * clamped;
  }
  return e;
}

template <bool kMoments>
TANDEM_INLINE TokenDistribution DistributionBody(const float* logits, int64_t n, float scale,
                                                 float* exps, double* block_mass) {
  TokenDistribution d;
  d.largest = LargestBody(logits, n);
  d.inverse_temperature = scale;
  for (int64_t begin = 0; begin < n; begin += kDistributionBlock) {
    const int64_t end = std::min(n, begin + kDistributionBlock);
    BlockSums sums;
    int64_t i = begin;
    for (; i + 16 <= end; i += 16) {
      const Vec16 e = AddExps<kMoments>(Load16(logits + i), d.largest, scale, sums);
      if (exps != nullptr) Store16(exps + i, e);
    }
    if (i < end) {
      const Vec16 e = AddExps<kMoments>(LoadSome16(logits + i, end - i, kMinusInfinity), d.largest,
                                        scale, sums);
      if (exps != nullptr) StoreSome16(exps + i, end - i, e);
    }
    const float mass = SumLanes(sums.mass);
    if (block_mass != nullptr) block_mass[begin / kDistributionBlock] = mass;
    d.mass += mass;
    if constexpr (kMoments) {
      d.first += SumLanes(sums.first);
      d.second += SumLanes(sums.second);
    }
  }
  d.log_mass = std::log(d.mass);
  return d;
}

TANDEM_INLINE double SumOfSquaresBody(const float* values, int64_t n) {
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kDistributionBlock) {
    const int64_t end = std::min(n, begin + kDistributionBlock);
    Vec16 sums = {};
    for (int64_t i = begin; i < end; i += 16) {
      const Vec16 v = i + 16 <= end ? Load16(values + i) : LoadSome16(values + i, end - i, 0);
      sums += v * v;
    }
    total += SumLanes(sums);
  }
  return total;
}

// Each lane keeps its two largest logits; the two largest of the row are among them.
TANDEM_INLINE LogitOrder OrderBody(const float* logits, int64_t n, float logit) {
  Vec16 largest = Splat16(kMinusInfinity), second = largest;
  Int16 above = {};
  for (int64_t i = 0; i < n; i += 16) {
    const Vec16 v =
        i + 16 <= n ? Load16(logits + i) : LoadSome16(logits + i, n - i, kMinusInfinity);
    above -= v > logit;  // a true comparison is -1 in each lane
    second = Max16(second, v > largest ? largest : v);
    largest = Max16(v, largest);
  }
  float first = kMinusInfinity, next = kMinusInfinity;
  LogitOrder order;
  for (int lane = 0; lane < kLanes; ++lane) {
    order.rank += above[lane];
    next = std::max(std::max(next, second[lane]), std::min(first, largest[lane]));
    first = std::max(first, largest[lane]);
  }
  order.margin = first - next;
  return order;
}

#define TANDEM_DEFINE_ROW_KERNELS(set, target)                                            \
  template <bool kMoments>                                                                \
  target TokenDistribution Distribution##set(const float* logits, int64_t n, float scale, \
                                             float* exps, double* block_mass) {           \
    return DistributionBody<kMoments>(logits, n, scale, exps, block_mass);                \
  }                                                                                       \
  target double SumOfSquares##set(const float* values, int64_t n) {                       \
    return SumOfSquaresBody(values, n);                                                   \
  }                                                                                       \
  target LogitOrder Order##set(const float* logits, int64_t n, float logit) {             \
    return OrderBody(logits, n, logit);                                                   \
  }

TANDEM_DEFINE_ROW_KERNELS(Scalar, )
TANDEM_DEFINE_ROW_KERNELS(Avx2, TANDEM_TARGET_AVX2)
TANDEM_DEFINE_ROW_KERNELS(Avx512, TANDEM_TARGET_AVX512)

template <bool kMoments>
TokenDistribution DistributionWith(InstructionSet set, std::span<const float> logits, float scale,
                                   float* exps, double* block_mass) {
  const auto& distribution = VariantFor(set, DistributionScalar<kMoments>,
                                        DistributionAvx2<kMoments>, DistributionAvx512<kMoments>);
  return distribution(logits.data(), static_cast<int64_t>(logits.size()), scale, exps, block_mass);
}

}  // namespace

TokenDistribution DistributionOf(InstructionSet set, std::span<const float> logits,
                                 float inverse_temperature, float* exps, double* block_mass) {
  return DistributionWith<true>(set, logits, inverse_temperature, exps, block_mass);
}

TokenDistribution MassOf(InstructionSet set, std::span<const float> logits,
                         float inverse_temperature, float* exps, double* block_mass) {
  return DistributionWith<false>(set, logits, inverse_temperature, exps, block_mass);
}

TokenDistribution DistributionOver(std::span<const float> logits, std::span<const int32_t> ids,
                                   float inverse_temperature, float largest) {
  TokenDistribution d;
  d.largest = largest;
  d.inverse_temperature = inverse_temperature;
  for (const int32_t id : ids) {
    const double y = (logits[id] - largest) * static_cast<double>(inverse_temperature);
    const double e = std::exp(y);
    d.mass += e;
    d.first += e * y;
    d.second += e * y * y;
  }
  d.log_mass = std::log(d.mass);
  return d;
}

double SumOfSquares(InstructionSet set, std::span<const float> values) {
  const auto& sum = VariantFor(set, SumOfSquaresScalar, SumOfSquaresAvx2, SumOfSquaresAvx512);
  return sum(values.data(), static_cast<int64_t>(values.size()));
}

LogitOrder OrderAt(InstructionSet set, std::span<const float> logits, int32_t id) {
  const auto& order = VariantFor(set, OrderScalar, OrderAvx2, OrderAvx512);
  return order(logits.data(), static_cast<int64_t>(logits.size()), logits[id]);
}

}  // namespace tandem
