// Log-probs of chosen tokens and their gradient on the device: against the CPU's, and against sums
// in float64.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <span>

#include "tests/trainer/policy/cuda/element_array.h"
#include "trainer/policy/cpu/cpu_layer_ops.h"
#include "trainer/policy/cuda/training_kernels.h"

namespace tandem::trainer::cuda {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Rows {
  int64_t vocabulary = 0;
  float inverse_temperature = 1;
  std::vector<float> logits;  // [R, V]
  std::vector<int64_t> tokens;
  std::vector<std::vector<int32_t>> supports;  // [R], or none at all

  size_t size() const { return tokens.size(); }
  float* row(size_t r) { return logits.data() + static_cast<int64_t>(r) * vocabulary; }
};

Rows MakeRows(size_t rows, int64_t vocabulary, float inverse_temperature, float spread = 3) {
  Rows made{.vocabulary = vocabulary, .inverse_temperature = inverse_temperature};
  made.logits = Normal(rows * static_cast<size_t>(vocabulary), 11, spread);
  for (size_t r = 0; r < rows; ++r) {
    made.tokens.push_back((static_cast<int64_t>(r) * 7919 + vocabulary - 1) % vocabulary);
  }
  return made;
}

// Every other row gets one: the token, its neighbours and some ids at either end.
void AddSupports(Rows& rows) {
  for (size_t r = 0; r < rows.size(); ++r) {
    std::vector<int32_t> ids;
    for (int32_t id = 0; r % 2 == 1 && id < rows.vocabulary; ++id) {
      const bool near = std::abs(id - rows.tokens[r]) <= static_cast<int64_t>(r);
      if (near || id == 0 || id % 97 == 13 || id == rows.vocabulary - 1) ids.push_back(id);
    }
    rows.supports.push_back(ids);
  }
}

// Rows on the device.
class DeviceRows {
 public:
  explicit DeviceRows(const Rows& rows, size_t lead = 0)
      : rows_(rows), logits_(Element::kFp32, rows.logits, lead), tokens_(rows.tokens) {
    std::vector<int64_t> offsets = {0};
    std::vector<int32_t> all;
    for (const std::vector<int32_t>& ids : rows.supports) {
      all.insert(all.end(), ids.begin(), ids.end());
      offsets.push_back(static_cast<int64_t>(all.size()));
    }
    offsets_ = std::make_unique<DeviceArray<int64_t>>(offsets);
    ids_ = std::make_unique<DeviceArray<int32_t>>(all);
  }

  LogitRows of() const {
    return {.logits = logits(),
            .tokens = tokens_.data(),
            .rows = static_cast<int64_t>(rows_.size()),
            .vocabulary = rows_.vocabulary,
            .inverse_temperature = rows_.inverse_temperature,
            .support_offsets = rows_.supports.empty() ? nullptr : offsets_->data(),
            .support_ids = ids_->data()};
  }
  float* logits() const { return static_cast<float*>(logits_.data()); }
  std::vector<float> ReadLogits() const { return logits_.Read(); }

 private:
  const Rows& rows_;
  ElementArray logits_;
  DeviceArray<int64_t> tokens_;
  std::unique_ptr<DeviceArray<int64_t>> offsets_;
  std::unique_ptr<DeviceArray<int32_t>> ids_;
};

struct Logprobs {
  std::vector<float> logprobs, entropies, lse;
  bool operator==(const Logprobs&) const = default;
};

Logprobs LogprobsOf(const Rows& rows, size_t lead = 0) {
  const DeviceRows on_device(rows, lead);
  const DeviceArray<float> logprobs(rows.size()), entropies(rows.size()), lse(rows.size());
  RunTokenLogprobs({.of = on_device.of(),
                    .logprobs = logprobs.data(),
                    .entropies = entropies.data(),
                    .lse = lse.data()},
                   nullptr);
  return {logprobs.Read(), entropies.Read(), lse.Read()};
}

// The tempered logits of a row in float64; those outside its support are -inf.
at::Tensor Tempered(const Rows& rows, size_t r) {
  const float* from = rows.logits.data() + static_cast<int64_t>(r) * rows.vocabulary;
  at::Tensor logits =
      at::tensor(std::vector<float>(from, from + rows.vocabulary), at::kFloat).to(at::kDouble) *
      static_cast<double>(rows.inverse_temperature);
  if (rows.supports.empty() || rows.supports[r].empty()) return logits;
  at::Tensor outside = at::ones({rows.vocabulary}, at::kBool);
  for (const int32_t id : rows.supports[r]) outside[id] = false;
  return logits.masked_fill(outside, -kInfinity);
}

void ExpectExact(const Rows& rows, const Logprobs& got) {
  for (size_t r = 0; r < rows.size(); ++r) {
    const at::Tensor logits = Tempered(rows, r), logprobs = at::log_softmax(logits, 0);
    const double want = logprobs[rows.tokens[r]].item<double>();
    EXPECT_NEAR(got.logprobs[r], want, 3e-6 + 2e-7 * std::abs(want)) << r;
    const at::Tensor terms = at::where(logprobs.isinf(), 0.0, logprobs.exp() * logprobs);
    EXPECT_NEAR(got.entropies[r], -terms.sum().item<double>(), 1e-5) << r;
    const double lse = at::logsumexp(logits, 0).item<double>();
    EXPECT_NEAR(got.lse[r], lse, 2e-6 + 2e-7 * std::abs(lse)) << r;
  }
}

// 2048 quads are what a block takes in at a time: shorter rows, rows of several times, rows whose
// neighbours are not aligned alike.
constexpr int64_t kVocabularies[] = {5, 32, 1500, 2049, 20003, 32768};

TEST(LogprobKernel, GivesLogOfHalfToOneOfTwoAndItsEntropy) {
  const Rows rows{.vocabulary = 3, .logits = {4, 4, -kInfinity}, .tokens = {1}};
  const Logprobs got = LogprobsOf(rows);
  EXPECT_FLOAT_EQ(got.logprobs[0], -std::log(2.0f));
  EXPECT_FLOAT_EQ(got.entropies[0], std::log(2.0f));
  EXPECT_FLOAT_EQ(got.lse[0], 4 + std::log(2.0f));
}

TEST(LogprobKernel, AgreesWithSumsInFloat64) {
  for (const int64_t vocabulary : kVocabularies) {
    for (const float inverse_temperature : {1.0f, 1.0f / 0.7f}) {
      for (const bool supports : {false, true}) {
        SCOPED_TRACE(vocabulary);
        Rows rows = MakeRows(4, vocabulary, inverse_temperature);
        if (supports) AddSupports(rows);
        ExpectExact(rows, LogprobsOf(rows));
      }
    }
  }
}

TEST(LogprobKernel, LosesNothingToLargeLogitsNorToRowsThatRise) {
  Rows rows = MakeRows(4, 20003, 1);
  for (int64_t v = 0; v < rows.vocabulary; ++v) {
    rows.row(0)[v] += 4096;                            // the log-prob does not see a shift
    rows.row(1)[v] = static_cast<float>(v) * 0.0625f;  // the largest so far changes all the time
    rows.row(2)[v] = v == 17 ? 80.0f : -kInfinity;
    rows.row(3)[v] = v == 19000 ? 3e38f : -3e38f;
  }
  rows.tokens = {3, 20002, 17, 19000};
  const Logprobs got = LogprobsOf(rows);
  const at::Tensor shifted = at::log_softmax(Tempered(rows, 0), 0);
  EXPECT_NEAR(got.logprobs[0], shifted[3].item<double>(), 2e-6);
  // 1 - e^(-1/16): a geometric series.
  EXPECT_NEAR(got.logprobs[1], std::log1p(-std::exp(-0.0625)), 1e-6);
  EXPECT_EQ(got.logprobs[2], 0);
  EXPECT_EQ(got.logprobs[3], 0);
  EXPECT_NEAR(got.entropies[3], 0, 1e-30);
}

TEST(LogprobKernel, GivesNanForARowWithNanOrInfinityAndForNothingButMinusInfinity) {
  Rows rows = MakeRows(5, 2049, 1);
  rows.row(1)[2000] = std::numeric_limits<float>::quiet_NaN();
  rows.row(2)[7] = kInfinity;
  std::fill_n(rows.row(3), rows.vocabulary, -kInfinity);
  const Logprobs got = LogprobsOf(rows);
  for (const size_t broken : {1, 2, 3}) EXPECT_TRUE(std::isnan(got.logprobs[broken])) << broken;
  for (const size_t whole : {0, 4}) EXPECT_TRUE(std::isfinite(got.logprobs[whole])) << whole;
}

TEST(LogprobKernel, GivesARowTheSameBitsAloneAndInCompanyAndAtAnyAddress) {
  for (const int64_t vocabulary : kVocabularies) {
    SCOPED_TRACE(vocabulary);
    Rows rows = MakeRows(4, vocabulary, 1.0f / 0.7f);
    AddSupports(rows);
    const Logprobs all = LogprobsOf(rows);
    EXPECT_EQ(LogprobsOf(rows, /*lead=*/3), all);
    for (const size_t r : {2, 3}) {
      Rows alone = rows;
      alone.logits = {rows.row(r), rows.row(r) + vocabulary};
      alone.tokens = {rows.tokens[r]};
      alone.supports = {rows.supports[r]};
      EXPECT_EQ(LogprobsOf(alone), (Logprobs{{all.logprobs[r]}, {all.entropies[r]}, {all.lse[r]}}));
    }
  }
}

// What the CPU makes of the same logits.
struct OnCpu {
  at::Tensor logits;
  std::vector<std::span<const int32_t>> supports;
  double temperature;
  RowLogprobs result;

  explicit OnCpu(const Rows& rows) {
    logits = at::tensor(rows.logits).view({static_cast<int64_t>(rows.size()), rows.vocabulary});
    supports.assign(rows.supports.begin(), rows.supports.end());
    temperature = 1.0 / static_cast<double>(rows.inverse_temperature);
    result = CpuLayerOps().Logprobs(logits, rows.tokens, temperature, supports);
  }
};

std::vector<float> Floats(const at::Tensor& x) {
  const at::Tensor own = x.contiguous();
  return {own.data_ptr<float>(), own.data_ptr<float>() + own.numel()};
}

TEST(LogprobKernel, AgreesWithTheCpus) {
  for (const int64_t vocabulary : {1500, 2049}) {
    Rows rows = MakeRows(6, vocabulary, 1.0f / 0.7f);
    AddSupports(rows);
    const OnCpu cpu(rows);
    const Logprobs got = LogprobsOf(rows);
    ExpectClose(got.logprobs, Floats(cpu.result.logprobs), 1e-6, 1);
    ExpectClose(got.entropies, Floats(cpu.result.entropies), 2e-6, 1);
    ExpectClose(got.lse, Floats(cpu.result.lse), 1e-6, 1);
  }
}

std::vector<float> GradOf(const Rows& rows, const std::vector<float>& lse,
                          const std::vector<float>& grad, Element element, size_t lead = 0) {
  const DeviceRows on_device(rows, lead);
  const DeviceArray<float> d_lse(lse), d_grad(grad);
  const ElementArray out(element, rows.logits.size(), lead);
  RunTokenLogprobsBackward({.of = on_device.of(),
                            .lse = d_lse.data(),
                            .logprobs_grad = d_grad.data(),
                            .logits_grad = out.data(),
                            .element = element},
                           nullptr);
  EXPECT_EQ(on_device.ReadLogits(), rows.logits);
  return out.Read();
}

TEST(LogprobGradKernel, GivesTheTokenWhatTheOthersLose) {
  // Two equal logits, temperature 1/2: 3 * 2 * (1 - 1/2) and back.
  const Rows rows{
      .vocabulary = 3, .inverse_temperature = 2, .logits = {4, 4, -kInfinity}, .tokens = {1}};
  const std::vector<float> got = GradOf(rows, LogprobsOf(rows).lse, {3}, Element::kFp32);
  ExpectClose(got, {-3, 3, 0}, 1e-6);
}

// Rounding of p, and where the token's own 1 - p is left of a p near 1, that of 1.
void ExpectGrad(const Rows& rows, const std::vector<float>& grad, Element element,
                const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    const size_t r = i / static_cast<size_t>(rows.vocabulary);
    const bool token = static_cast<int64_t>(i) % rows.vocabulary == rows.tokens[r];
    const double of_one = token ? 5e-7 * std::abs(grad[r] * rows.inverse_temperature) : 0;
    const double relative = element == Element::kFp32 ? 4e-6 : 0x1p-8;
    ASSERT_NEAR(got[i], want[i], relative * std::abs(want[i]) + of_one) << "at " << i;
  }
}

TEST(LogprobGradKernel, AgreesWithTheCpus) {
  for (const int64_t vocabulary : kVocabularies) {
    for (const bool supports : {false, true}) {
      SCOPED_TRACE(vocabulary);
      Rows rows = MakeRows(4, vocabulary, 1.0f / 0.7f);
      if (supports) AddSupports(rows);
      const std::vector<float> grad = {1.5f, -2, 0, 0.25f};
      const OnCpu cpu(rows);
      const std::vector<float> want = Floats(
          CpuLayerOps().LogprobsBackward(cpu.logits, rows.tokens, cpu.temperature, cpu.supports,
                                         cpu.result.lse, at::tensor(grad), {}));
      for (const Element element : kElements) {
        const std::vector<float> got = GradOf(rows, Floats(cpu.result.lse), grad, element);
        ExpectGrad(rows, grad, element, got, want);
        EXPECT_EQ(GradOf(rows, Floats(cpu.result.lse), grad, element, /*lead=*/1), got);
      }
    }
  }
}

TEST(LogprobGradKernel, IsZeroOutsideTheSupport) {
  Rows rows = MakeRows(2, 2049, 1);
  AddSupports(rows);
  rows.row(1)[100] = std::numeric_limits<float>::quiet_NaN();  // read by nobody
  const std::vector<float> lse = LogprobsOf(rows).lse;
  const DeviceRows on_device(rows);
  const DeviceArray<float> d_lse(lse), d_grad(std::vector<float>{1, 1});
  RunTokenLogprobsBackward({.of = on_device.of(),
                            .lse = d_lse.data(),
                            .logprobs_grad = d_grad.data(),
                            .logits_grad = on_device.logits()},
                           nullptr);
  const std::vector<float> got = on_device.ReadLogits();
  double sum = 0;
  for (int32_t v = 0; v < 2049; ++v) {
    const std::vector<int32_t>& ids = rows.supports[1];
    const float one = got[static_cast<size_t>(2049 + v)];
    if (!std::binary_search(ids.begin(), ids.end(), v)) {
      EXPECT_EQ(one, 0) << v;
    } else {
      EXPECT_NE(one, 0) << v;
    }
    sum += one;
  }
  EXPECT_NEAR(sum, 0, 1e-6);
}

TEST(LogprobGradKernel, MayOverwriteTheLogits) {
  for (const int64_t vocabulary : kVocabularies) {
    Rows rows = MakeRows(4, vocabulary, 1.0f / 0.7f);
    AddSupports(rows);
    const std::vector<float> lse = LogprobsOf(rows).lse, grad = {1.5f, -2, 0, 0.25f};
    const DeviceRows on_device(rows);
    const DeviceArray<float> d_lse(lse), d_grad(grad);
    RunTokenLogprobsBackward({.of = on_device.of(),
                              .lse = d_lse.data(),
                              .logprobs_grad = d_grad.data(),
                              .logits_grad = on_device.logits()},
                             nullptr);
    EXPECT_EQ(on_device.ReadLogits(), GradOf(rows, lse, grad, Element::kFp32));
  }
}

}  // namespace
}  // namespace tandem::trainer::cuda
