// Pushes of adapters into the receiver: merged into the base, and served whole or not at all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/tensor/bf16_rounding.h"
#include "rollout_server/weights/weight_receiver.h"
#include "tests/support/status_matchers.h"

namespace tandem::rollout {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::testing::ElementsAre;

constexpr char kUp[] = "model.layers.0.mlp.up_proj.weight";
constexpr char kNorm[] = "model.norm.weight";
constexpr auto kBadValue = absl::StatusCode::kInvalidArgument;
constexpr auto kNotNow = absl::StatusCode::kFailedPrecondition;

class Nothing : public StagedWeights {};

// Keeps the floats of what was staged.
class FloatSink : public WeightSink {
 public:
  absl::StatusOr<std::unique_ptr<StagedWeights>> Stage(std::vector<HostTensor> tensors) override {
    staged.clear();
    for (const HostTensor& tensor : tensors) {
      for (int64_t i = 0; i < tensor.spec.num_elements(); ++i) {
        uint16_t bits = 0;
        std::memcpy(&bits, tensor.bytes.data() + 2 * i, sizeof(bits));
        staged.push_back(Bf16ToFloat(bits));
      }
    }
    return std::make_unique<Nothing>();
  }
  absl::StatusOr<std::unique_ptr<StagedWeights>> StageAdapter(
      const AdapterFactors& adapter) override {
    beside = adapter;
    staged.clear();
    return std::make_unique<Nothing>();
  }
  bool unmerged() const override { return is_unmerged; }
  std::optional<Device> arrival_memory() const override { return std::nullopt; }
  absl::StatusOr<std::unique_ptr<ArrivingWeights>> Arrive() override {
    return absl::UnimplementedError("no device");
  }
  absl::StatusOr<double> Install(std::unique_ptr<StagedWeights>, WeightVersion) override {
    return 0.0;
  }

  bool is_unmerged = false;
  std::vector<float> staged;
  AdapterFactors beside;
};

template <typename T>
HostTensor Tensor(const TensorSpec& spec, const std::vector<T>& values) {
  auto owner = std::make_shared<std::vector<T>>(values);
  return {spec, std::as_bytes(std::span(*owner)), owner};
}

std::vector<uint16_t> Bf16(const std::vector<float>& values) {
  std::vector<uint16_t> bits;
  for (const float value : values) bits.push_back(NearestBf16(value));
  return bits;
}

// A model of one layer [2, 3] and a norm [2], and an adapter of rank 1 with B A = [[1, 0, 2], [-2, 0,
// -4]], which counts half.
class AdapterUpdateTest : public ::testing::Test {
 protected:
  AdapterUpdateTest() { receiver_.StartEpoch(1); }

  AdapterHeader Header() const { return {1, 0.5f, false, CombinedDigest(DigestTensors(base_))}; }

  absl::Status Send(int64_t version, const AdapterHeader& header) {
    absl::Status begun = receiver_.BeginAdapter({version}, header, {a_.spec, b_.spec}).status();
    if (!begun.ok()) return begun;
    begun = receiver_.Receive({version}, 0, 0, a_.bytes);
    return begun.ok() ? receiver_.Receive({version}, 1, 0, b_.bytes) : begun;
  }

  const std::vector<TensorSpec> model_ = {{kUp, DType::kBF16, {2, 3}}, {kNorm, DType::kBF16, {2}}};
  std::vector<HostTensor> base_ = {Tensor(model_[0], Bf16({10, 20, 30, 40, 50, 60})),
                                   Tensor(model_[1], Bf16({7, 8}))};
  const std::string module_ = "base_model.model.model.layers.0.mlp.up_proj";
  const HostTensor a_ = Tensor<float>({module_ + ".lora_A.weight", DType::kF32, {1, 3}}, {1, 0, 2});
  const HostTensor b_ = Tensor<float>({module_ + ".lora_B.weight", DType::kF32, {2, 1}}, {1, -2});
  const DigestMap digests_ = DigestTensors(std::vector<HostTensor>{a_, b_});
  FloatSink sink_;
  int num_loads_ = 0;
  WeightReceiver receiver_{&sink_, model_, {{0}, 0, DigestTensors(base_)}, [this] {
                             ++num_loads_;
                             return absl::StatusOr<std::vector<HostTensor>>(base_);
                           }};
};

TEST_F(AdapterUpdateTest, IsMergedIntoTheBaseEachTimeAnewAndSaysWhatItDid) {
  for (const int64_t version : {1, 2}) {  // not one upon the other
    ASSERT_THAT(Send(version, Header()), IsOk());
    const auto report = receiver_.Commit({version}, digests_);
    ASSERT_THAT(report, IsOk());
    EXPECT_THAT(sink_.staged, ElementsAre(10.5f, 20, 31, 39, 50, 58, 7, 8));
    ASSERT_EQ(report->live.effects.size(), 1u);
    const ModuleEffect& module = report->live.effects[0];
    EXPECT_EQ(module.weight, kUp);
    EXPECT_EQ(module.effect.squared_change, 0.25 + 1 + 1 + 4);
    EXPECT_EQ(module.effect.arrived, 6.25);  // all of it: these sums are bf16 numbers
    EXPECT_EQ(module.effect.squared_loss, 0);
    EXPECT_EQ(module.effect.changed, 4);
    const HostTensor want = Tensor(model_[0], Bf16({10.5f, 20, 31, 39, 50, 58}));
    EXPECT_EQ(report->live.merged, DigestTensors(std::vector<HostTensor>{want, base_[1]}));
    EXPECT_EQ(report->live.digests, digests_);
    EXPECT_EQ(receiver_.live()->merged, report->live.merged);
    EXPECT_FALSE(receiver_.takes_delta());
  }
  EXPECT_EQ(num_loads_, 1);
}

TEST_F(AdapterUpdateTest, OfAServerThatDoesNotMergeStandsBesideTheWeightsAndSaysWhatItAdds) {
  sink_.is_unmerged = true;
  ASSERT_THAT(Send(1, Header()), IsOk());
  const auto report = receiver_.Commit({1}, digests_);
  ASSERT_THAT(report, IsOk());
  EXPECT_TRUE(sink_.staged.empty());
  EXPECT_EQ(num_loads_, 0) << "the engine has the base";
  ASSERT_EQ(sink_.beside.modules.size(), 1u);
  EXPECT_EQ(sink_.beside.modules[0].weight, kUp);
  EXPECT_EQ(sink_.beside.scaling, 0.5f);
  ASSERT_EQ(report->live.effects.size(), 1u);
  const LoraEffect& effect = report->live.effects[0].effect;
  EXPECT_DOUBLE_EQ(effect.squared_change, 0.25 + 1 + 1 + 4);
  EXPECT_DOUBLE_EQ(effect.arrived, 6.25);
  EXPECT_EQ(effect.squared_loss, 0);
  DigestMap want = DigestTensors(base_);
  want[kUp] =
      CombinedDigest({{"a", Digest128(a_.bytes)}, {"b", Digest128(b_.bytes)}, {"w", want[kUp]}});
  EXPECT_EQ(report->live.merged, want);
  AdapterHeader of_another = Header();
  of_another.base_digest = "0123";
  EXPECT_THAT(Send(2, of_another), FailsWith(kBadValue, "start it with the model"));
}

TEST_F(AdapterUpdateTest, AWholePushAfterwardsServesWhatItBrings) {
  ASSERT_THAT(Send(1, Header()), IsOk());
  ASSERT_THAT(receiver_.Commit({1}, digests_), IsOk());
  ASSERT_THAT(receiver_.Begin({2}, model_), IsOk());
  for (int i = 0; i < 2; ++i) {
    ASSERT_THAT(receiver_.Receive({2}, i, 0, base_[static_cast<size_t>(i)].bytes), IsOk());
  }
  const auto report = receiver_.Commit({2}, DigestTensors(base_));
  ASSERT_THAT(report, IsOk());
  EXPECT_THAT(sink_.staged, ElementsAre(10, 20, 30, 40, 50, 60, 7, 8));
  EXPECT_TRUE(report->live.merged.empty());
  EXPECT_TRUE(receiver_.takes_delta());
  // And an adapter after it is of the base again, not of what was pushed.
  ASSERT_THAT(Send(3, Header()), IsOk());
  ASSERT_THAT(receiver_.Commit({3}, digests_), IsOk());
  EXPECT_THAT(sink_.staged, ElementsAre(10.5f, 20, 31, 39, 50, 58, 7, 8));
}

TEST_F(AdapterUpdateTest, ALayerThatTheModelDoesNotHaveIsNamed) {
  TensorSpec a = a_.spec, b = b_.spec;
  a.name = "base_model.model.model.layers.1.mlp.up_proj.lora_A.weight";
  EXPECT_THAT(receiver_.BeginAdapter({1}, Header(), {a, b}),
              FailsWith(kBadValue, "layers.1.mlp.up_proj.lora_A.weight is of no linear layer"));
  a.name = "base_model.model.model.norm.lora_A.weight";
  EXPECT_THAT(receiver_.BeginAdapter({1}, Header(), {a, b}), FailsWith(kBadValue, "model.norm"));
  EXPECT_THAT(receiver_.BeginAdapter({1}, Header(), {a_.spec}), FailsWith(kBadValue, "A and B"));
  EXPECT_THAT(receiver_.BeginAdapter({1}, Header(), {b_.spec, a_.spec}),
              FailsWith(kBadValue, "lora_B.weight is of no linear layer"));
  EXPECT_THAT(receiver_.BeginAdapter({1}, Header(), {a_.spec, b_.spec, a_.spec, b_.spec}),
              FailsWith(kBadValue, "comes twice"));
  AdapterHeader header = Header();
  header.rank = 2;
  EXPECT_THAT(receiver_.BeginAdapter({1}, header, {a_.spec, b_.spec}),
              FailsWith(kBadValue, "must stand"));
  header = Header();
  header.scaling = 0;
  EXPECT_THAT(receiver_.BeginAdapter({1}, header, {a_.spec, b_.spec}),
              FailsWith(kBadValue, "scaling is 0"));
}

TEST_F(AdapterUpdateTest, AnAdapterOfAnotherBaseIsRefusedWithWhatToDo) {
  AdapterHeader header = Header();
  header.base_digest = "0123";
  EXPECT_THAT(Send(1, header), FailsWith(kBadValue, "start it with the model"));
  // The files on disk are others now.
  base_[1] = Tensor(model_[1], Bf16({7, 9}));
  header.base_digest = CombinedDigest(DigestTensors(std::vector<HostTensor>{
      Tensor(model_[0], Bf16({10, 20, 30, 40, 50, 60})), Tensor(model_[1], Bf16({7, 8}))}));
  EXPECT_THAT(Send(1, header), FailsWith(kNotNow, "changed since this server loaded them"));
}

TEST_F(AdapterUpdateTest, DamagedOrMissingBytesChangeNothing) {
  ASSERT_THAT(Send(1, Header()), IsOk());
  ASSERT_THAT(receiver_.Commit({1}, digests_), IsOk());
  const auto before = receiver_.live();
  DigestMap wrong = digests_;
  wrong[b_.spec.name] = Digest128(a_.bytes);
  ASSERT_THAT(Send(2, Header()), IsOk());
  EXPECT_THAT(receiver_.Commit({2}, wrong),
              FailsWith(absl::StatusCode::kDataLoss, "lora_B.weight is"));
  ASSERT_THAT(receiver_.BeginAdapter({2}, Header(), {a_.spec, b_.spec}), IsOk());
  ASSERT_THAT(receiver_.Receive({2}, 0, 0, a_.bytes), IsOk());
  EXPECT_THAT(receiver_.Commit({2}, digests_),
              FailsWith(absl::StatusCode::kDataLoss, "did not arrive"));
  EXPECT_EQ(receiver_.live(), before);
  ASSERT_THAT(Send(2, Header()), IsOk());
  ASSERT_THAT(receiver_.Commit({2}, digests_), IsOk());
}

}  // namespace
}  // namespace tandem::rollout
