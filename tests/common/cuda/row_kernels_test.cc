// The kernels around attention, compared with the CPU's over (dtype, shape) rows.
#include <gtest/gtest.h>

#include "common/model/forward_kernels.h"
#include "tests/support/device/device_memory.h"

namespace tandem::cuda {
namespace {

const ForwardKernels& Cpu() { return ForwardKernelsFor(InstructionSet::kScalar); }

// The output of a kernel, of type T, as floats.
template <typename T>
constexpr Element kElementOf = sizeof(T) == 2 ? Element::kBf16 : Element::kFp32;

template <typename T>
class RowKernels : public ::testing::Test {
 public:
  static constexpr Element kElement = kElementOf<T>;

  // Values as a model of this dtype stores them.
  static std::vector<T> Typed(const std::vector<float>& values) {
    if constexpr (sizeof(T) == 2) {
      return Bf16Of(values);
    } else {
      return values;
    }
  }
};
using Elements = ::testing::Types<float, uint16_t>;
TYPED_TEST_SUITE(RowKernels, Elements);

TYPED_TEST(RowKernels, EmbedGivesTheRowsOfTheTable) {
  const std::vector<TypeParam> table = this->Typed(Normal(7 * 576, 1));
  const DeviceArray<TypeParam> on_device(table);
  const DeviceArray<int32_t> ids(std::vector<int32_t>{6, 0, 6});
  const DeviceArray<float> hidden(3 * 576);
  Embed(on_device.data(), this->kElement, ids.data(), 3, 576, hidden.data(), nullptr);
  const std::vector<float> want = FloatsOf(table), got = hidden.Read();
  for (const auto& [row, id] : {std::pair(0, 6), {1, 0}, {2, 6}}) {
    for (int i = 0; i < 576; ++i)
      ASSERT_EQ(got[row * 576 + i], want[id * 576 + i]) << row << " " << i;
  }
}

TYPED_TEST(RowKernels, AddNormAddsTheBranchAndNormalisesTheSum) {
  for (const int64_t width : {32, 576, 896, 3584}) {
    for (const bool has_bias : {false, true}) {
      SCOPED_TRACE(width);
      constexpr int64_t kRows = 3;
      std::vector<float> hidden = Normal(kRows * width, 1, 4);
      const std::vector<float> delta = Normal(kRows * width, 2), bias = Normal(width, 3);
      const std::vector<float> weight = Normal(width, 4);
      const DeviceArray<float> d_hidden(hidden), d_delta(delta), d_bias(bias), d_weight(weight);
      const DeviceArray<TypeParam> normed(kRows * width);
      RunAddNorm({.hidden = d_hidden.data(),
                  .delta = d_delta.data(),
                  .bias = has_bias ? d_bias.data() : nullptr,
                  .weight = d_weight.data(),
                  .eps = 1e-5f,
                  .rows = kRows,
                  .width = width,
                  .normed = normed.data(),
                  .element = this->kElement},
                 nullptr);
      std::vector<float> want(hidden.size());
      for (int64_t r = 0; r < kRows; ++r) {
        for (int64_t i = 0; i < width; ++i) {
          hidden[r * width + i] += delta[r * width + i] + (has_bias ? bias[i] : 0.0f);
        }
        Cpu().rms_norm(hidden.data() + r * width, weight.data(), width, 1e-5f,
                       want.data() + r * width);
      }
      EXPECT_EQ(d_hidden.Read(), hidden);
      ExpectClose(FloatsOf(normed.Read()), want, Tolerance(this->kElement));
    }
  }
}

TEST(AddNorm, TakesTheChosenRowsAndKeepsWhatBf16RoundsAway) {
  constexpr int64_t kWidth = 576;
  const std::vector<float> hidden = Normal(5 * kWidth, 1), weight = Normal(kWidth, 2);
  const DeviceArray<float> d_hidden(hidden), d_weight(weight);
  const DeviceArray<int64_t> chosen(std::vector<int64_t>{4, 1});
  const DeviceArray<uint16_t> normed(2 * kWidth), rest(2 * kWidth);
  RunAddNorm({.hidden = d_hidden.data(),
              .weight = d_weight.data(),
              .eps = 1e-6f,
              .chosen = chosen.data(),
              .rows = 2,
              .width = kWidth,
              .normed = normed.data(),
              .element = Element::kBf16,
              .rest = rest.data()},
             nullptr);
  EXPECT_EQ(d_hidden.Read(), hidden);
  const std::vector<float> high = FloatsOf(normed.Read()), low = FloatsOf(rest.Read());
  for (const auto& [row, from] : {std::pair(0, 4), {1, 1}}) {
    std::vector<float> want(kWidth);
    Cpu().rms_norm(hidden.data() + from * kWidth, weight.data(), kWidth, 1e-6f, want.data());
    for (int i = 0; i < kWidth; ++i) {
      const double sum = static_cast<double>(high[row * kWidth + i]) + low[row * kWidth + i];
      ASSERT_NEAR(sum, want[i], 0x1p-15 * std::abs(want[i]) + 1e-30) << row << " " << i;
    }
  }
}

struct HeadShape {
  int64_t heads, kv_heads, head_dim;
  bool has_bias, qk_norm;
};

// The CPU's queries, keys and values of one row, from `qkv` [(H + 2 Hkv) D].
std::vector<float> RotatedOnCpu(const HeadShape& shape, std::vector<float> qkv,
                                const std::vector<float>& bias, const std::vector<float>& q_norm,
                                const std::vector<float>& k_norm,
                                const std::vector<float>& frequencies, int32_t position) {
  const int64_t d = shape.head_dim;
  std::vector<float> cosines, sines;
  for (const float frequency : frequencies) {
    cosines.push_back(std::cos(static_cast<float>(position) * frequency));
    sines.push_back(std::sin(static_cast<float>(position) * frequency));
  }
  for (size_t i = 0; shape.has_bias && i < qkv.size(); ++i) qkv[i] += bias[i];
  for (int64_t h = 0; h < shape.heads + shape.kv_heads; ++h) {
    float* head = qkv.data() + h * d;
    const bool query = h < shape.heads;
    if (shape.qk_norm) Cpu().rms_norm(head, (query ? q_norm : k_norm).data(), d, 1e-6f, head);
    Cpu().rotate(head, cosines.data(), sines.data(), d, {d, /*interleaved=*/false},
                 query ? 1.0f / std::sqrt(static_cast<float>(d)) : 1.0f);
  }
  return qkv;
}

TYPED_TEST(RowKernels, RotateStoreGivesTheCpusQueriesKeysAndValuesInTheirBlocks) {
  const HeadShape shapes[] = {{4, 2, 8, false, false},  {9, 3, 64, false, false},
                              {14, 2, 64, true, false}, {16, 8, 128, false, true},
                              {4, 2, 256, true, true},  {3, 1, 80, false, false}};
  const std::vector<int32_t> positions = {0, 17, 5, 30000};
  const std::vector<int64_t> slots = {3 * 16, 1 * 16 + 7, -1, 2 * 16 + 15};
  for (const HeadShape& shape : shapes) {
    SCOPED_TRACE(shape.head_dim);
    const int64_t d = shape.head_dim, all = (shape.heads + 2 * shape.kv_heads) * d;
    const std::vector<float> qkv = Normal(4 * all, 1), bias = Normal(all, 2), q_norm = Normal(d, 3),
                             k_norm = Normal(d, 4);
    std::vector<float> frequencies;
    for (int64_t i = 0; i < d / 2; ++i) {
      frequencies.push_back(
          std::pow(10000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(d)));
    }
    const DeviceArray<float> d_qkv(qkv), d_bias(bias), d_q(q_norm), d_k(k_norm), d_f(frequencies);
    const DeviceArray<int32_t> d_positions(positions);
    const DeviceArray<int64_t> d_slots(slots);
    const DeviceArray<float> queries(4 * shape.heads * d);
    const DeviceArray<uint16_t> queries_bf16(4 * shape.heads * d);
    const std::vector<TypeParam> untouched =
        this->Typed(std::vector<float>(4 * shape.kv_heads * 16 * d, 9.0f));
    const DeviceArray<TypeParam> keys(untouched), values(untouched);
    RunRotateStore({.qkv = d_qkv.data(),
                    .bias = shape.has_bias ? d_bias.data() : nullptr,
                    .q_norm = shape.qk_norm ? d_q.data() : nullptr,
                    .k_norm = shape.qk_norm ? d_k.data() : nullptr,
                    .eps = 1e-6f,
                    .inverse_frequencies = d_f.data(),
                    .positions = d_positions.data(),
                    .slots = d_slots.data(),
                    .rows = 4,
                    .heads = shape.heads,
                    .kv_heads = shape.kv_heads,
                    .head_dim = d,
                    .queries = queries.data(),
                    .queries_bf16 = queries_bf16.data(),
                    .keys = keys.data(),
                    .values = values.data(),
                    .kv = this->kElement},
                   nullptr);
    std::vector<float> want_queries, want_keys = FloatsOf(untouched), want_values = want_keys;
    for (size_t r = 0; r < 4; ++r) {
      const std::vector<float> row =
          RotatedOnCpu(shape, {qkv.begin() + r * all, qkv.begin() + (r + 1) * all}, bias, q_norm,
                       k_norm, frequencies, positions[r]);
      want_queries.insert(want_queries.end(), row.begin(), row.begin() + shape.heads * d);
      if (slots[r] < 0) continue;
      for (int64_t i = 0; i < shape.kv_heads * d; ++i) {
        const int64_t at =
            ((slots[r] / 16 * shape.kv_heads + i / d) * 16 + slots[r] % 16) * d + i % d;
        want_keys[at] = row[shape.heads * d + i];
        want_values[at] = row[(shape.heads + shape.kv_heads) * d + i];
      }
    }
    ExpectClose(queries.Read(), want_queries, 1e-5);
    ExpectClose(FloatsOf(queries_bf16.Read()), want_queries, Tolerance(Element::kBf16));
    ExpectClose(FloatsOf(keys.Read()), want_keys, this->kElement == Element::kFp32 ? 1e-5 : 0x1p-8,
                1);
    ExpectClose(FloatsOf(values.Read()), want_values, Tolerance(this->kElement));
  }
}

TYPED_TEST(RowKernels, SwiGluGivesTheCpusProducts) {
  for (const int64_t width : {8, 1536, 4864}) {
    for (const bool has_bias : {false, true}) {
      SCOPED_TRACE(width);
      const std::vector<float> gate_up = Normal(2 * 2 * width, 1, 3);
      const std::vector<float> bias =
          has_bias ? Normal(2 * width, 2) : std::vector<float>(2 * width, 0.0f);
      const DeviceArray<float> d_gate_up(gate_up), d_bias(bias);
      const DeviceArray<TypeParam> out(2 * width);
      SwiGlu(d_gate_up.data(), has_bias ? d_bias.data() : nullptr, 2, width, out.data(),
             this->kElement, nullptr);
      std::vector<float> want(2 * width);
      for (int64_t r = 0; r < 2; ++r) {
        std::vector<float> row(gate_up.begin() + r * 2 * width,
                               gate_up.begin() + (r + 1) * 2 * width);
        for (int64_t i = 0; i < 2 * width; ++i) row[i] += bias[i];
        Cpu().swiglu(row.data(), row.data() + width, width, want.data() + r * width);
      }
      ExpectClose(FloatsOf(out.Read()), want, Tolerance(this->kElement));
    }
  }
}

TYPED_TEST(RowKernels, GatherKvTakesTokensOutOfTheirBlocks) {
  constexpr int64_t kKvHeads = 3, kDim = 64;
  std::vector<float> numbers(5 * kKvHeads * 16 * kDim);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i % 251);
  const std::vector<TypeParam> cache = this->Typed(numbers);
  const DeviceArray<TypeParam> keys(cache), values(cache);
  const std::vector<int64_t> slots = {4 * 16 + 15, 0, 2 * 16 + 3};
  const DeviceArray<int64_t> d_slots(slots);
  const DeviceArray<TypeParam> out_keys(3 * kKvHeads * kDim), out_values(3 * kKvHeads * kDim);
  GatherKv(keys.data(), values.data(), this->kElement, d_slots.data(), 3, kKvHeads, kDim,
           out_keys.data(), out_values.data(), nullptr);
  std::vector<TypeParam> want;
  for (const int64_t slot : slots) {
    for (int64_t h = 0; h < kKvHeads; ++h) {
      const int64_t at = ((slot / 16 * kKvHeads + h) * 16 + slot % 16) * kDim;
      want.insert(want.end(), cache.begin() + at, cache.begin() + at + kDim);
    }
  }
  EXPECT_EQ(out_keys.Read(), want);
  EXPECT_EQ(out_values.Read(), want);
}

// 300 copies, which need more than one launch, over two layers of 700 blocks.
TEST(CopyBlocks, CopiesAllLayersOfEachPairAndNothingElse) {
  constexpr int64_t kLayers = 2, kBlocks = 700, kWords = 8;
  std::vector<uint32_t> cache(kLayers * kBlocks * kWords);
  for (size_t i = 0; i < cache.size(); ++i) cache[i] = static_cast<uint32_t>(i);
  const DeviceArray<uint32_t> on_device(cache);
  std::vector<int32_t> from, to;
  for (int32_t i = 0; i < 300; ++i) {
    from.push_back(i / 3);
    to.push_back(699 - i);
  }
  RunCopyBlocks({.cache = on_device.data(),
                 .layers = kLayers,
                 .blocks = kBlocks,
                 .block_bytes = kWords * 4,
                 .from = from.data(),
                 .to = to.data(),
                 .count = 300},
                nullptr);
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    for (size_t i = 0; i < from.size(); ++i) {
      const int64_t first = layer * kBlocks;
      std::copy_n(cache.begin() + (first + from[i]) * kWords, kWords,
                  cache.begin() + (first + to[i]) * kWords);
    }
  }
  EXPECT_EQ(on_device.Read(), cache);
}

}  // namespace
}  // namespace tandem::cuda
