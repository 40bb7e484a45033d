// The kernels against plain fp64 loops.
#include "rollout_server/engine/kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "common/tensor/bf16_rounding.h"

namespace tandem::rollout {
namespace {

using ::testing::ElementsAre;

std::vector<float> Random(uint32_t seed, int64_t size) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<float> values(size);
  for (float& x : values) x = static_cast<float>(normal(random));
  return values;
}

TEST(RmsNorm, DividesByTheRootMeanSquareAndScales) {
  // Mean of squares (9 + 16) / 2 = 12.5; with eps 12.5 the divisor is 5.
  const float x[] = {3, -4}, weight[] = {1, 10};
  float out[2];
  RmsNorm(x, weight, 2, 12.5f, out);
  EXPECT_FLOAT_EQ(out[0], 0.6f);
  EXPECT_FLOAT_EQ(out[1], -8.0f);
}

TEST(RmsNorm, AgreesWithFp64ForSizesOffTheVectorWidth) {
  for (int64_t n : {1, 15, 16, 17, 33, 576}) {
    const std::vector<float> x = Random(1, n), weight = Random(2, n);
    std::vector<float> out(n);
    RmsNorm(x.data(), weight.data(), n, 1e-5f, out.data());
    double squares = 0;
    for (float v : x) squares += double{v} * v;
    const double scale = 1 / std::sqrt(squares / static_cast<double>(n) + 1e-5);
    for (int64_t i = 0; i < n; ++i) EXPECT_NEAR(out[i], x[i] * scale * weight[i], 1e-5);
  }
}

TEST(RmsNorm, AddRmsNormLeavesTheSumInX) {
  float x[] = {1, 2}, out[2];
  const float delta[] = {2, -6}, weight[] = {1, 1};
  AddRmsNorm(x, delta, weight, 2, 12.5f, out);
  EXPECT_THAT(x, ElementsAre(3, -4));
  EXPECT_FLOAT_EQ(out[0], 0.6f);
}

TEST(Rotate, PairsAnElementWithTheOneHalfAHeadAway) {
  float head[] = {1, 2, 3, 4};
  const float cosines[] = {0, 1}, sines[] = {1, 0};  // a quarter turn of the pair (1, 3)
  Rotate(head, cosines, sines, 4);
  EXPECT_THAT(head, ElementsAre(-3, 2, 1, 4));
}

TEST(SwiGlu, GatesWithTheSigmoid) {
  for (int64_t n : {1, 16, 37}) {
    std::vector<float> gate_up = Random(3, 2 * n), out(n);
    gate_up[0] = -80;  // a sigmoid of nothing
    SwiGlu(gate_up.data(), n, out.data());
    for (int64_t i = 0; i < n; ++i) {
      const double gate = gate_up[i], up = gate_up[n + i];
      EXPECT_NEAR(out[i], gate / (1 + std::exp(-gate)) * up, 1e-6);
    }
  }
}

// A cache with two KV heads in scattered blocks, and the keys and values as they were rounded.
template <typename Kv>
struct Cache {
  static constexpr int64_t kHeads = 2;

  Cache(int64_t head_dim, int64_t tokens)
      : d(head_dim), padded((head_dim + 15) / 16 * 16), context(tokens) {
    const int64_t used = (context + 15) / 16;
    const int64_t total = used + 3;
    for (int64_t b = 0; b < used; ++b) blocks.push_back(static_cast<int32_t>(total - 1 - b));
    // What no token wrote may be anything: the cache starts uninitialised.
    Kv nan;
    if constexpr (sizeof(Kv) == 2) {
      nan = 0x7FC0;
    } else {
      nan = std::numeric_limits<float>::quiet_NaN();
    }
    key_cache.assign(total * kHeads * d * 16, nan);
    value_cache.assign(total * kHeads * 16 * padded, nan);
    layer = {key_cache.data(), value_cache.data(),   kHeads * d * 16,
             d * 16,           kHeads * 16 * padded, 16 * padded};
    for (int64_t t = 0; t < context; ++t) {
      for (int64_t h = 0; h < kHeads; ++h) {
        const auto seed = static_cast<uint32_t>(1000 + t * kHeads + h);
        const std::vector<float> key = Random(seed, d), value = Random(seed + 50000, d);
        WriteKv<Kv>(
            key.data(), value.data(), d, padded, t % 16,
            key_cache.data() + blocks[t / 16] * layer.key_block_stride + h * d * 16,
            value_cache.data() + blocks[t / 16] * layer.value_block_stride + h * 16 * padded);
        keys.push_back(AsStored(key));
        values.push_back(AsStored(value));
      }
    }
  }

  static std::vector<double> AsStored(const std::vector<float>& values) {
    std::vector<double> out;
    for (float v : values) {
      if constexpr (sizeof(Kv) == 2) v = std::bit_cast<float>(uint32_t{NearestBf16(v)} << 16);
      out.push_back(v);
    }
    return out;
  }

  // Attention of one query over head `h`, in fp64.
  std::vector<double> Attend(const float* query, int64_t h) const {
    std::vector<double> p(context), out(d);
    for (int64_t t = 0; t < context; ++t) {
      for (int64_t i = 0; i < d; ++i) p[t] += query[i] * keys[t * kHeads + h][i];
      p[t] = std::exp(p[t]);
    }
    const double mass = std::accumulate(p.begin(), p.end(), 0.0);
    for (int64_t t = 0; t < context; ++t) {
      for (int64_t i = 0; i < d; ++i) out[i] += p[t] / mass * values[t * kHeads + h][i];
    }
    return out;
  }

  int64_t d, padded, context;
  std::vector<int32_t> blocks;
  std::vector<Kv> key_cache, value_cache;
  KvLayer<Kv> layer;
  std::vector<std::vector<double>> keys, values;  // [context * kHeads][d]
};

template <typename Kv>
class AttendHeadTest : public ::testing::Test {};
using KvTypes = ::testing::Types<float, uint16_t>;
TYPED_TEST_SUITE(AttendHeadTest, KvTypes);

template <typename Kv>
void ExpectAttendsAsInFp64(int64_t d, int64_t context, int64_t num_queries) {
  const Cache<Kv> cache(d, context);
  std::vector<float> queries = Random(9, num_queries * d);
  for (float& q : queries) q /= std::sqrt(static_cast<float>(d));
  std::vector<float> scratch(num_queries * ((context + 15) / 16 * 16));
  for (int64_t h = 0; h < Cache<Kv>::kHeads; ++h) {
    std::vector<float> out(num_queries * d, -99.0f);
    AttendHead<Kv>(queries.data(), num_queries, d, cache.padded, cache.layer, h,
                   cache.blocks.data(), context, scratch.data(), out.data());
    for (int64_t q = 0; q < num_queries; ++q) {
      const std::vector<double> want = cache.Attend(queries.data() + q * d, h);
      for (int64_t i = 0; i < d; ++i) {
        ASSERT_NEAR(out[q * d + i], want[i], 1e-5)
            << "d " << d << ", context " << context << ", query " << q << " of " << num_queries;
      }
    }
  }
}

TYPED_TEST(AttendHeadTest, AgreesWithFp64ForOneToNineQueryHeads) {
  for (int64_t num_queries = 1; num_queries <= 9; ++num_queries) {
    ExpectAttendsAsInFp64<TypeParam>(64, 37, num_queries);
  }
}

TYPED_TEST(AttendHeadTest, AgreesWithFp64ForContextsAroundBlockBorders) {
  for (int64_t context : {1, 2, 15, 16, 17, 31, 32, 33, 100}) {
    ExpectAttendsAsInFp64<TypeParam>(32, context, 3);
  }
}

TYPED_TEST(AttendHeadTest, AgreesWithFp64ForHeadSizesOffTheVectorWidth) {
  for (int64_t d : {2, 8, 16, 24, 40, 80, 128}) ExpectAttendsAsInFp64<TypeParam>(d, 21, 5);
}

TYPED_TEST(AttendHeadTest, AQueryGivesTheSameBitsInAnyCompany) {
  const Cache<TypeParam> cache(24, 50);
  const std::vector<float> queries = Random(4, 9 * 24);
  std::vector<float> scratch(9 * 64), together(9 * 24), alone(24);
  AttendHead<TypeParam>(queries.data(), 9, 24, 32, cache.layer, 1, cache.blocks.data(), 50,
                        scratch.data(), together.data());
  for (int64_t q = 0; q < 9; ++q) {
    AttendHead<TypeParam>(queries.data() + q * 24, 1, 24, 32, cache.layer, 1, cache.blocks.data(),
                          50, scratch.data(), alone.data());
    EXPECT_EQ(alone, std::vector<float>(together.begin() + q * 24, together.begin() + q * 24 + 24));
  }
}

}  // namespace
}  // namespace tandem::rollout
