// The kernels of every instruction set of this machine, compared with plain fp64 loops.
#include "common/model/forward_kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "common/matrix/quantise.h"
#include "common/tensor/bf16_rounding.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;

std::vector<float> Random(uint32_t seed, int64_t size) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<float> values(size);
  for (float& x : values) x = static_cast<float>(normal(random));
  return values;
}

class ForwardKernelsTest : public ::testing::TestWithParam<InstructionSet> {
 protected:
  const ForwardKernels& kernels_ = ForwardKernelsFor(GetParam());
};

TEST_P(ForwardKernelsTest, RmsNormDividesByTheRootMeanSquareAndScales) {
  // Mean of squares (9 + 16) / 2 = 12.5; with eps 12.5 the divisor is 5.
  const float x[] = {3, -4}, weight[] = {1, 10};
  float out[2];
  EXPECT_FLOAT_EQ(kernels_.rms_norm(x, weight, 2, 12.5f, out), 0.2f);
  EXPECT_FLOAT_EQ(out[0], 0.6f);
  EXPECT_FLOAT_EQ(out[1], -8.0f);
}

TEST_P(ForwardKernelsTest, RmsNormAgreesWithFp64ForSizesOffTheVectorWidth) {
  for (int64_t n : {1, 15, 16, 17, 33, 100, 576}) {
    const std::vector<float> x = Random(1, n), weight = Random(2, n);
    std::vector<float> out(n);
    kernels_.rms_norm(x.data(), weight.data(), n, 1e-5f, out.data());
    double squares = 0;
    for (float v : x) squares += double{v} * v;
    const double scale = 1 / std::sqrt(squares / static_cast<double>(n) + 1e-5);
    for (int64_t i = 0; i < n; ++i) EXPECT_NEAR(out[i], x[i] * scale * weight[i], 1e-5);
  }
}

TEST_P(ForwardKernelsTest, RmsNormGivesTheSameBitsWhereverTheRowLies) {
  const std::vector<float> row = Random(5, 100), weight = Random(6, 100);
  std::vector<float> first(100), shifted(100);
  kernels_.rms_norm(row.data(), weight.data(), 100, 1e-5f, first.data());
  for (int64_t offset = 1; offset < 16; ++offset) {
    std::vector<float> moved(offset);
    moved.insert(moved.end(), row.begin(), row.end());
    kernels_.rms_norm(moved.data() + offset, weight.data(), 100, 1e-5f, shifted.data());
    EXPECT_EQ(shifted, first);
  }
}

TEST_P(ForwardKernelsTest, RotatePairsAnElementWithTheOneHalfAHeadAwayAndScales) {
  float head[] = {1, 2, 3, 4};
  const float cosines[] = {0, 1}, sines[] = {1, 0};  // a quarter turn of the pair (1, 3)
  kernels_.rotate(head, cosines, sines, 4, {4, /*interleaved=*/false}, 2.0f);
  EXPECT_THAT(head, ElementsAre(-6, 4, 2, 8));
}

TEST_P(ForwardKernelsTest, RotateTurnsNeighboursWhereInterleavedAndLeavesTheRestOfTheHead) {
  float head[] = {1, 2, 3, 4, 5, 6};
  const float cosines[] = {0, 1}, sines[] = {1, 0};  // a quarter turn of the pair (1, 2)
  kernels_.rotate(head, cosines, sines, 6, {4, /*interleaved=*/true}, 2.0f);
  EXPECT_THAT(head, ElementsAre(-4, 2, 6, 8, 10, 12));
  float half[] = {1, 2, 3, 4, 5, 6};
  kernels_.rotate(half, cosines, sines, 6, {4, /*interleaved=*/false}, 1.0f);
  EXPECT_THAT(half, ElementsAre(-3, 2, 1, 4, 5, 6));
  float none[] = {1, 2};
  kernels_.rotate(none, cosines, sines, 2, {0, /*interleaved=*/false}, 3.0f);
  EXPECT_THAT(none, ElementsAre(3, 6));
}

// torch.nn.functional.gelu(x, approximate="tanh") of 1, -1, 3 and 0.
TEST_P(ForwardKernelsTest, GeGluGatesWithTheTanhFormOfGelu) {
  const float gates[] = {1, -1, 3, 0, -80, 90}, ups[] = {1, 2, 1, 5, 1, 2};
  float out[6];
  kernels_.geglu(gates, ups, 6, out);
  EXPECT_NEAR(out[0], 0.841191995f, 1e-6f);
  EXPECT_NEAR(out[1], 2 * -0.158808f, 1e-6f);
  EXPECT_NEAR(out[2], 2.99636269f, 1e-6f);
  EXPECT_EQ(out[3], 0);
  EXPECT_NEAR(out[4], 0, 1e-30f);
  EXPECT_EQ(out[5], 180);
  for (int64_t n : {16, 37}) {
    const std::vector<float> g = Random(3, n), u = Random(4, n);
    std::vector<float> got(n);
    kernels_.geglu(g.data(), u.data(), n, got.data());
    for (int64_t i = 0; i < n; ++i) {
      const double x = g[i];
      const double tanh = std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
      EXPECT_NEAR(got[i], x / 2 * (1 + tanh) * u[i], 2e-6);
    }
  }
}

TEST_P(ForwardKernelsTest, SoftCapBendsValuesTowardsTheCap) {
  // 30 tanh(1) = 22.847825, 30 tanh(1/30000) = 0.001 to seven digits.
  std::vector<float> x = {30, -30, 0.001f, 0, 3000, -3000};
  kernels_.soft_cap(x.data(), 6, 30);
  EXPECT_NEAR(x[0], 22.847825f, 4e-6f);
  EXPECT_NEAR(x[1], -22.847825f, 4e-6f);
  EXPECT_FLOAT_EQ(x[2], 0.001f);
  EXPECT_EQ(x[3], 0);
  EXPECT_FLOAT_EQ(x[4], 30);
  EXPECT_FLOAT_EQ(x[5], -30);
  for (int64_t n : {16, 37}) {
    std::vector<float> values = Random(3, n);
    const std::vector<float> before = values;
    kernels_.soft_cap(values.data(), n, 1.5f);
    for (int64_t i = 0; i < n; ++i) {
      EXPECT_NEAR(values[i], 1.5 * std::tanh(before[i] / 1.5), 1e-6);
    }
  }
}

TEST_P(ForwardKernelsTest, SwiGluGatesWithTheSigmoid) {
  for (int64_t n : {1, 16, 37}) {
    std::vector<float> gates = Random(3, n), ups = Random(4, n), out(n);
    gates[0] = -80;  // its sigmoid is almost 0
    kernels_.swiglu(gates.data(), ups.data(), n, out.data());
    for (int64_t i = 0; i < n; ++i) {
      const double gate = gates[i], up = ups[i];
      EXPECT_NEAR(out[i], gate / (1 + std::exp(-gate)) * up, 1e-6);
    }
  }
}

TEST_P(ForwardKernelsTest, AddRowsAddsTheLeftPartOfATile) {
  const float tile[] = {1, 2, 99, 3, 4, 99};
  float out[] = {10, 20, 30, 40};
  kernels_.add_rows(tile, 3, 2, 2, out, 2);
  EXPECT_THAT(out, ElementsAre(11, 22, 33, 44));
}

TEST_P(ForwardKernelsTest, MachinesWithAndWithoutAvx512GiveTheSameBits) {
  if (GetParam() == InstructionSet::kScalar) return;  // has no fused multiply-add
  const ForwardKernels& avx2 = ForwardKernelsFor(InstructionSet::kAvx2);
  for (const int64_t n : {6, 64, 100, 576}) {
    const std::vector<float> a = Random(7, n), b = Random(8, n), c = Random(9, n);
    std::vector<float> want(n), got(n);
    EXPECT_EQ(kernels_.rms_norm(a.data(), b.data(), n, 1e-5f, got.data()),
              avx2.rms_norm(a.data(), b.data(), n, 1e-5f, want.data()));
    EXPECT_EQ(got, want) << "norm " << n;
    kernels_.swiglu(a.data(), b.data(), n, got.data());
    avx2.swiglu(a.data(), b.data(), n, want.data());
    EXPECT_EQ(got, want) << "SwiGLU " << n;
    kernels_.geglu(a.data(), b.data(), n, got.data());
    avx2.geglu(a.data(), b.data(), n, want.data());
    EXPECT_EQ(got, want) << "GEGLU " << n;
    got = want = a;
    kernels_.soft_cap(got.data(), n, 2.0f);
    avx2.soft_cap(want.data(), n, 2.0f);
    EXPECT_EQ(got, want) << "soft cap " << n;
    got = want = a;
    kernels_.rotate(got.data(), b.data(), c.data(), n, {n, false}, 0.3f);
    avx2.rotate(want.data(), b.data(), c.data(), n, {n, false}, 0.3f);
    EXPECT_EQ(got, want) << "rotation " << n;
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, ForwardKernelsTest, ::testing::ValuesIn(SupportedInstructionSets()),
                         [](const auto& info) {
                           return std::string(InstructionSetName(info.param));
                         });

// A cache with two KV heads in scattered blocks, with the keys and values after rounding.
template <typename Kv>
struct Cache {
  static constexpr int64_t kHeads = 2;

  Cache(InstructionSet set, int64_t head_dim, int64_t tokens)
      : kernels(ForwardKernelsFor(set)),
        d(head_dim),
        padded((head_dim + 15) / 16 * 16),
        context(tokens) {
    const int64_t used = (context + 15) / 16;
    const int64_t total = used + 3;
    for (int64_t b = 0; b < used; ++b) blocks.push_back(static_cast<int32_t>(total - 1 - b));
    // Memory that no token wrote may hold anything, because the cache starts uninitialised.
    Kv nan;
    if constexpr (sizeof(Kv) == 1) {
      nan = Kv{0x7f};
    } else if constexpr (sizeof(Kv) == 2) {
      nan = 0x7FC0;
    } else {
      nan = std::numeric_limits<float>::quiet_NaN();
    }
    key_cache.assign(total * kHeads * d * 16, nan);
    value_cache.assign(total * kHeads * 16 * padded, nan);
    key_scales.assign(total * kHeads * 16, std::numeric_limits<float>::quiet_NaN());
    value_scales = key_scales;
    layer = {
        key_cache.data(), value_cache.data(), kHeads * d * 16,     d * 16, kHeads * 16 * padded,
        16 * padded,      key_scales.data(),  value_scales.data(), kHeads};
    for (int64_t t = 0; t < context; ++t) {
      for (int64_t h = 0; h < kHeads; ++h) {
        const auto seed = static_cast<uint32_t>(1000 + t * kHeads + h);
        const std::vector<float> key = Random(seed, d), value = Random(seed + 50000, d);
        const int32_t block = blocks[t / 16];
        kernels.WriteKv<Kv>()(key.data(), value.data(), d, layer, {block, h, t % 16});
        keys.push_back(AsStored(key));
        values.push_back(AsStored(value));
      }
    }
  }

  static std::vector<double> AsStored(const std::vector<float>& values) {
    if constexpr (sizeof(Kv) == 1) {
      std::vector<float> stored(values.size());
      FakeQuantise({std::is_same_v<Kv, int8_t> ? WeightScheme::kInt8 : WeightScheme::kFp8E4m3},
                   values.data(), std::ssize(values), stored.data());
      return {stored.begin(), stored.end()};
    }
    std::vector<double> out;
    for (float v : values) {
      if constexpr (sizeof(Kv) == 2) v = std::bit_cast<float>(uint32_t{NearestBf16(v)} << 16);
      out.push_back(v);
    }
    return out;
  }

  // Attention of one query over the first `num_tokens` tokens of head `h`, in fp64. The last
  // element is the log of the sum of e^score.
  std::vector<double> Attend(const float* query, int64_t h, int64_t num_tokens) const {
    std::vector<double> p(num_tokens), out(d);
    const int64_t first = window > 0 ? std::max<int64_t>(0, num_tokens - window) : 0;
    for (int64_t t = first; t < num_tokens; ++t) {
      for (int64_t i = 0; i < d; ++i) p[t] += query[i] * keys[t * kHeads + h][i];
      if (softcap > 0) p[t] = softcap * std::tanh(p[t] / softcap);
      p[t] = std::exp(p[t]);
    }
    const double mass = std::accumulate(p.begin(), p.end(), 0.0);
    for (int64_t t = 0; t < num_tokens; ++t) {
      for (int64_t i = 0; i < d; ++i) out[i] += p[t] / mass * values[t * kHeads + h][i];
    }
    out.push_back(std::log(mass));
    return out;
  }

  // Runs the kernel for the last `num_tokens` tokens. Returns out [num_tokens, num_heads, d], then
  // lse.
  std::vector<float> Run(const std::vector<float>& queries, int64_t num_tokens, int64_t num_heads,
                         int64_t kv_head) const {
    AttentionTask<Kv> task;
    task.queries = queries.data();
    task.query_stride = num_heads * d;
    task.num_tokens = num_tokens;
    task.num_heads = num_heads;
    task.head_dim = d;
    task.first_position = context - num_tokens;
    task.window = window;
    task.softcap = softcap;
    task.layer = layer;
    task.kv_head = kv_head;
    task.blocks = blocks.data();
    const int64_t size = num_tokens * num_heads * d;
    std::vector<float> out(size + num_tokens * num_heads, -99.0f);
    task.out = out.data();
    task.out_stride = task.query_stride;
    task.lse = out.data() + size;
    task.lse_stride = num_heads;
    std::vector<float> scratch(AttentionScratch(context));
    kernels.Attend<Kv>()(task, scratch.data());
    return out;
  }

  const ForwardKernels& kernels;
  int64_t d, padded, context;
  int64_t window = 0;
  float softcap = 0;
  std::vector<int32_t> blocks;
  std::vector<Kv> key_cache, value_cache;
  std::vector<float> key_scales, value_scales;
  KvLayer<Kv> layer;
  std::vector<std::vector<double>> keys, values;  // [context * kHeads][d]
};

template <typename Kv>
class AttendTest : public ::testing::Test {};
using KvTypes = ::testing::Types<float, uint16_t, int8_t, E4m3>;
TYPED_TEST_SUITE(AttendTest, KvTypes);

std::vector<float> RandomQueries(int64_t num_rows, int64_t d) {
  std::vector<float> queries = Random(9, num_rows * d);
  for (float& q : queries) q /= std::sqrt(static_cast<float>(d));
  return queries;
}

template <typename Kv>
void ExpectAttendsAsInFp64(int64_t d, int64_t context, int64_t num_tokens, int64_t num_heads,
                           int64_t window = 0, float softcap = 0) {
  const std::vector<float> queries = RandomQueries(num_tokens * num_heads, d);
  for (const InstructionSet set : SupportedInstructionSets()) {
    Cache<Kv> cache(set, d, context);
    cache.window = window;
    cache.softcap = softcap;
    for (int64_t h = 0; h < Cache<Kv>::kHeads; ++h) {
      const std::vector<float> got = cache.Run(queries, num_tokens, num_heads, h);
      for (int64_t q = 0; q < num_tokens * num_heads; ++q) {
        const int64_t seen = context - num_tokens + q / num_heads + 1;
        const std::vector<double> want = cache.Attend(queries.data() + q * d, h, seen);
        for (int64_t i = 0; i < d; ++i) {
          ASSERT_NEAR(got[q * d + i], want[i], 1e-5)
              << InstructionSetName(set) << ", d " << d << ", context " << context << ", query "
              << q << " of " << num_tokens << " x " << num_heads;
        }
        ASSERT_NEAR(got[num_tokens * num_heads * d + q], want[d], 1e-5);
      }
    }
  }
}

TYPED_TEST(AttendTest, AgreesWithFp64ForOneToNineQueryHeads) {
  for (int64_t num_heads = 1; num_heads <= 9; ++num_heads) {
    ExpectAttendsAsInFp64<TypeParam>(64, 37, 1, num_heads);
  }
}

TYPED_TEST(AttendTest, AgreesWithFp64ForContextsAroundBlockBorders) {
  for (int64_t context : {1, 2, 15, 16, 17, 31, 32, 33, 64, 65, 100}) {
    ExpectAttendsAsInFp64<TypeParam>(32, context, 1, 3);
  }
}

TYPED_TEST(AttendTest, AgreesWithFp64ForHeadSizesOffTheVectorWidth) {
  for (int64_t d : {2, 8, 16, 24, 40, 80, 128}) ExpectAttendsAsInFp64<TypeParam>(d, 21, 1, 5);
}

TYPED_TEST(AttendTest, AgreesWithFp64WhenNeighbouringTokensLookTogether) {
  for (int64_t num_tokens : {2, 3, 7, 16}) {
    for (int64_t num_heads : {1, 3, 4}) {
      ExpectAttendsAsInFp64<TypeParam>(16, 33, num_tokens, num_heads);
    }
  }
}

TYPED_TEST(AttendTest, AgreesWithFp64UnderAWindowAndASoftCap) {
  for (const int64_t window : {1, 2, 15, 16, 17, 31, 40, 100}) {
    for (const int64_t context : {16, 33, 50}) {
      ExpectAttendsAsInFp64<TypeParam>(16, context, 1, 3, window);
      ExpectAttendsAsInFp64<TypeParam>(24, context, 7, 4, window, 0.7f);
    }
  }
  ExpectAttendsAsInFp64<TypeParam>(64, 37, 1, 9, 0, 2.0f);
}

// Values before the window may be anything: they are not read.
TYPED_TEST(AttendTest, ANaNTokenBeforeTheWindowChangesNoBit) {
  const int64_t d = 24, num_heads = 3, num_tokens = 5;
  const std::vector<float> nan(d, std::numeric_limits<float>::quiet_NaN());
  const std::vector<float> queries = RandomQueries(num_tokens * num_heads, d);
  for (const InstructionSet set : SupportedInstructionSets()) {
    Cache<TypeParam> cache(set, d, 35);
    cache.window = 10;  // the first query sees tokens 21 to 30
    const std::vector<float> healthy = cache.Run(queries, num_tokens, num_heads, 1);
    const int32_t block = cache.blocks[20 / 16];
    cache.kernels.template WriteKv<TypeParam>()(nan.data(), nan.data(), d, cache.layer,
                                                {block, 1, 20 % 16});
    EXPECT_EQ(cache.Run(queries, num_tokens, num_heads, 1), healthy) << InstructionSetName(set);
  }
}

TYPED_TEST(AttendTest, AQueryUnderAWindowGivesTheSameBitsInAnyCompany) {
  const int64_t d = 24, num_tokens = 20, num_heads = 3;
  const std::vector<float> queries = RandomQueries(num_tokens * num_heads, d);
  for (const InstructionSet set : SupportedInstructionSets()) {
    Cache<TypeParam> cache(set, d, 50);
    cache.window = 19;
    cache.softcap = 3;
    const std::vector<float> together = cache.Run(queries, num_tokens, num_heads, 1);
    for (int64_t t = 0; t < num_tokens; ++t) {
      Cache<TypeParam> shorter(set, d, 50 - num_tokens + t + 1);
      shorter.window = 19;
      shorter.softcap = 3;
      for (int64_t h = 0; h < num_heads; ++h) {
        const int64_t q = t * num_heads + h;
        const std::vector<float> alone =
            shorter.Run({queries.begin() + q * d, queries.begin() + (q + 1) * d}, 1, 1, 1);
        ASSERT_TRUE(std::equal(alone.begin(), alone.begin() + d, together.begin() + q * d));
        ASSERT_EQ(alone[d], together[num_tokens * num_heads * d + q]);
      }
    }
  }
}

TYPED_TEST(AttendTest, AQueryGivesTheSameBitsInAnyCompany) {
  const int64_t d = 24, num_tokens = 20, num_heads = 3;
  const std::vector<float> queries = RandomQueries(num_tokens * num_heads, d);
  for (const InstructionSet set : SupportedInstructionSets()) {
    const std::vector<float> together =
        Cache<TypeParam>(set, d, 50).Run(queries, num_tokens, num_heads, 1);
    for (int64_t t = 0; t < num_tokens; ++t) {
      const Cache<TypeParam> shorter(set, d, 50 - num_tokens + t + 1);
      for (int64_t h = 0; h < num_heads; ++h) {
        const int64_t q = t * num_heads + h;
        const std::vector<float> alone =
            shorter.Run({queries.begin() + q * d, queries.begin() + (q + 1) * d}, 1, 1, 1);
        ASSERT_TRUE(std::equal(alone.begin(), alone.begin() + d, together.begin() + q * d));
        ASSERT_EQ(alone[d], together[num_tokens * num_heads * d + q]);
      }
    }
  }
}

// A token that became NaN affects itself and later tokens of its sequence. Earlier tokens may be
// shared with other sequences, and must not change.
TYPED_TEST(AttendTest, ANaNTokenChangesNoBitOfTheTokensBeforeIt) {
  const int64_t d = 24, num_heads = 3;
  const std::vector<float> nan(d, std::numeric_limits<float>::quiet_NaN());
  for (const InstructionSet set : SupportedInstructionSets()) {
    for (const int64_t num_tokens : {2, 5, 8}) {
      const std::vector<float> queries = RandomQueries(num_tokens * num_heads, d);
      Cache<TypeParam> cache(set, d, 35);
      const std::vector<float> healthy = cache.Run(queries, num_tokens, num_heads, 1);
      const int64_t last = 34;
      const auto write = [&](auto* kernel) {
        const int32_t block = cache.blocks[last / 16];
        kernel(nan.data(), nan.data(), d, cache.layer, {block, 1, last % 16});
      };
      write(cache.kernels.template WriteKv<TypeParam>());
      const std::vector<float> got = cache.Run(queries, num_tokens, num_heads, 1);
      const int64_t before = (num_tokens - 1) * num_heads * d;
      ASSERT_TRUE(std::equal(got.begin(), got.begin() + before, healthy.begin()))
          << InstructionSetName(set) << ", " << num_tokens << " tokens";
      ASSERT_TRUE(std::isnan(got[before]));
    }
  }
}

TYPED_TEST(AttendTest, MachinesWithAndWithoutAvx512GiveTheSameBits) {
  const std::vector<float> queries = RandomQueries(4, 40);
  for (const InstructionSet set : SupportedInstructionSets()) {
    if (set == InstructionSet::kScalar) continue;  // has no fused multiply-add
    EXPECT_EQ(Cache<TypeParam>(set, 40, 70).Run(queries, 2, 2, 0),
              Cache<TypeParam>(InstructionSet::kAvx2, 40, 70).Run(queries, 2, 2, 0));
  }
}

}  // namespace
}  // namespace tandem
