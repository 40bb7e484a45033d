// Attention over KV blocks, compared with the CPU's over (dtype, shape) rows, and batch invariance:
// a row's bits do not depend on the other rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "common/model/forward_kernels.h"
#include "tests/support/device/device_memory.h"

namespace tandem::cuda {
namespace {

struct Shape {
  int64_t heads, kv_heads, head_dim;
};

// Sequences with these context lengths; keys and values are in shuffled blocks, in both layouts.
template <typename Kv>
struct Cache {
  Cache(const Shape& wanted, const std::vector<int32_t>& wanted_contexts)
      : shape(wanted), contexts(wanted_contexts) {
    const int64_t longest = *std::max_element(contexts.begin(), contexts.end());
    max_blocks = (longest + 15) / 16;
    const auto rows = static_cast<int64_t>(contexts.size());
    const int64_t num_blocks = rows * max_blocks;
    tables.resize(num_blocks);
    std::iota(tables.begin(), tables.end(), 0);
    std::shuffle(tables.begin(), tables.end(), std::mt19937(7));
    const int64_t d = shape.head_dim, padded = PaddedHeadDim(d),
                  heads = num_blocks * shape.kv_heads;
    keys.resize(heads * 16 * d);
    values.resize(heads * 16 * d);
    cpu_keys.resize(heads * d * 16);
    cpu_values.resize(heads * 16 * padded);
    const ForwardKernels& cpu = ForwardKernelsFor(InstructionSet::kScalar);
    for (int64_t token = 0; token < rows * longest; ++token) {
      const int64_t row = token / longest, position = token % longest;
      if (position >= contexts[row]) continue;
      const int64_t block = tables[row * max_blocks + position / 16], slot = position % 16;
      for (int64_t h = 0; h < shape.kv_heads; ++h) {
        const std::vector<float> key = Normal(d, 2 * (token * 8 + h)),
                                 value = Normal(d, 2 * (token * 8 + h) + 1);
        const int64_t at = block * shape.kv_heads + h;
        Put(key, keys.data() + (at * 16 + slot) * d);
        Put(value, values.data() + (at * 16 + slot) * d);
        const KvLayer<Kv> cpu_layer = {.keys = cpu_keys.data() + at * d * 16,
                                       .values = cpu_values.data() + at * 16 * padded};
        cpu.WriteKv<Kv>()(key.data(), value.data(), d, cpu_layer, {0, 0, slot});
      }
    }
    queries = Normal(rows * shape.heads * d, 99, 1.0f / std::sqrt(static_cast<float>(d)));
  }

  static void Put(const std::vector<float>& from, Kv* to) {
    for (size_t i = 0; i < from.size(); ++i) {
      if constexpr (sizeof(Kv) == 2) {
        to[i] = NearestBf16(from[i]);
      } else {
        to[i] = from[i];
      }
    }
  }

  // [N, H D]
  std::vector<float> OnCpu() {
    const ForwardKernels& cpu = ForwardKernelsFor(InstructionSet::kScalar);
    const int64_t d = shape.head_dim, group = shape.heads / shape.kv_heads;
    std::vector<float> out(contexts.size() * shape.heads * d, 0.0f);
    for (size_t row = 0; row < contexts.size(); ++row) {
      for (int64_t h = 0; h < shape.kv_heads && contexts[row] > 0; ++h) {
        AttentionTask<Kv> task;
        task.queries = queries.data() + (row * shape.heads + h * group) * d;
        task.query_stride = task.out_stride = group * d;
        task.num_tokens = 1;
        task.num_heads = group;
        task.head_dim = d;
        task.first_position = contexts[row] - 1;
        task.layer = {cpu_keys.data(),
                      cpu_values.data(),
                      shape.kv_heads * d * 16,
                      d * 16,
                      shape.kv_heads * 16 * PaddedHeadDim(d),
                      16 * PaddedHeadDim(d)};
        task.kv_head = h;
        task.blocks = tables.data() + row * max_blocks;
        task.out = out.data() + (row * shape.heads + h * group) * d;
        std::vector<float> scratch(tandem::AttentionScratch(contexts[row]));
        cpu.Attend<Kv>()(task, scratch.data());
      }
    }
    return out;
  }

  const Shape shape;
  const std::vector<int32_t> contexts;
  int64_t max_blocks = 0;
  std::vector<int32_t> tables;
  std::vector<Kv> keys, values, cpu_keys, cpu_values;
  std::vector<float> queries;
};

// Attention for the rows `chosen` of the cache's sequences in one call: [chosen, H D] of type T.
template <typename T, typename Kv>
std::vector<T> OnDevice(const Cache<Kv>& cache, const std::vector<int32_t>& chosen) {
  const Shape& shape = cache.shape;
  const int64_t width = shape.heads * shape.head_dim, rows = static_cast<int64_t>(chosen.size());
  std::vector<float> queries;
  std::vector<int32_t> contexts;
  for (const int32_t row : chosen) {
    queries.insert(queries.end(), cache.queries.begin() + row * width,
                   cache.queries.begin() + (row + 1) * width);
    contexts.push_back(cache.contexts[row]);
  }
  const int64_t longest = *std::max_element(contexts.begin(), contexts.end());
  const DeviceArray<float> d_queries(queries);
  const DeviceArray<Kv> keys(cache.keys), values(cache.values);
  const DeviceArray<int32_t> tables(cache.tables), sequences(chosen), d_contexts(contexts);
  const DeviceArray<float> scratch(
      static_cast<size_t>(cuda::AttentionScratch(rows, shape.heads, shape.head_dim, longest)), NAN);
  const DeviceArray<T> out(rows * width);
  RunPagedAttention({.queries = d_queries.data(),
                     .keys = keys.data(),
                     .values = values.data(),
                     .kv = sizeof(Kv) == 2 ? Element::kBf16 : Element::kFp32,
                     .block_tables = tables.data(),
                     .sequences = sequences.data(),
                     .contexts = d_contexts.data(),
                     .rows = rows,
                     .heads = shape.heads,
                     .kv_heads = shape.kv_heads,
                     .head_dim = shape.head_dim,
                     .max_blocks = cache.max_blocks,
                     .longest = longest,
                     .scratch = scratch.data(),
                     .out = out.data(),
                     .element = sizeof(T) == 2 ? Element::kBf16 : Element::kFp32},
                    nullptr);
  return out.Read();
}

std::vector<int32_t> All(size_t rows) {
  std::vector<int32_t> all(rows);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

template <typename Kv>
class PagedAttentionOf : public ::testing::Test {};
using Elements = ::testing::Types<float, uint16_t>;
TYPED_TEST_SUITE(PagedAttentionOf, Elements);

TYPED_TEST(PagedAttentionOf, GivesTheCpusValuesOverContextsOfOneAndOfManyChunks) {
  const Shape shapes[] = {{4, 2, 8},    {9, 3, 64},   {14, 2, 64}, {2, 2, 80},
                          {28, 4, 128}, {10, 1, 256}, {3, 1, 96}};
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(shape.heads);
    Cache<TypeParam> cache(shape, {1, 0, 256, 530});
    ExpectClose(OnDevice<float>(cache, All(4)), cache.OnCpu(), 2e-5);
    ExpectClose(FloatsOf(OnDevice<uint16_t>(cache, All(4))), cache.OnCpu(), 0x1p-8);
  }
}

TYPED_TEST(PagedAttentionOf, ARowHasTheSameBitsAloneAndInCompany) {
  for (const Shape& shape : {Shape{9, 3, 64}, Shape{14, 2, 128}}) {
    const Cache<TypeParam> cache(shape, {300, 16, 256, 513});
    const std::vector<float> together = OnDevice<float>(cache, All(4));
    const size_t width = shape.heads * shape.head_dim;
    for (int32_t row = 0; row < 4; ++row) {
      const std::vector<float> alone = OnDevice<float>(cache, {row});
      EXPECT_EQ(0, std::memcmp(alone.data(), together.data() + row * width, width * sizeof(float)))
          << row;
    }
    const std::vector<float> turned = OnDevice<float>(cache, {3, 2, 1, 0, 3});
    EXPECT_EQ(0, std::memcmp(turned.data(), together.data() + 3 * width, width * sizeof(float)));
    EXPECT_EQ(0, std::memcmp(turned.data() + 4 * width, turned.data(), width * sizeof(float)));
  }
}

}  // namespace
}  // namespace tandem::cuda
