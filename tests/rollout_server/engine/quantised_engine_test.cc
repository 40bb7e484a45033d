// What an engine with quantised weights says of them, and that it serves each version's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "common/model/formats/stored_tensors.h"
#include "common/model/quantisation_plan.h"
#include "common/weights/host_tensor.h"
#include "rollout_server/engine/forward/model_runner.h"
#include "tests/rollout_server/engine/engine_fixture.h"

namespace tandem::rollout {
namespace {

using tandem::testing::FailsWith;
using tandem::testing::IsOk;
using ::testing::IsEmpty;

class QuantisedEngineTest : public EngineFixture {
 protected:
  static EngineOptions With(const QuantisationOptions& quantised) {
    EngineOptions options = Fp32();
    options.dtype = ComputeDType::kBf16;
    options.quantised = quantised;
    return options;
  }
  static EngineOptions Int8() { return With({.weights = WeightScheme::kInt8}); }

  // The initial tensors with the first bytes of the first layer's down_proj zeroed.
  static std::vector<HostTensor> Changed(const Engine& engine) {
    std::vector<HostTensor> tensors = engine.initial_tensors();
    for (HostTensor& tensor : tensors) {
      if (tensor.spec.name != "model.layers.0.mlp.down_proj.weight") continue;
      auto bytes =
          std::make_shared<std::vector<std::byte>>(tensor.bytes.begin(), tensor.bytes.end());
      std::fill_n(bytes->begin(), 64, std::byte{0});
      tensor.bytes = *bytes;
      tensor.owner = bytes;
    }
    return tensors;
  }
};

TEST_F(QuantisedEngineTest, EqualWeightsInEqualFormatsHaveEqualServedDigests) {
  const auto a = Make(Int8()), b = Make(Int8());
  EXPECT_EQ(a->served_digests(), b->served_digests());
  EXPECT_EQ(
      a->served_digests().size(),
      static_cast<size_t>(4 * a->config().num_layers + (a->config().tie_word_embeddings ? 1 : 2)));
  EXPECT_TRUE(a->served_digests().contains("model.layers.0.down_proj"));
  const auto other = Make(With({.weights = WeightScheme::kFp8E4m3}));
  EXPECT_NE(other->served_digests(), a->served_digests());
}

TEST_F(QuantisedEngineTest, WeightsThatAreNotQuantisedHaveNoServedDigests) {
  EXPECT_THAT(Make(Fp32())->served_digests(), IsEmpty());
}

TEST_F(QuantisedEngineTest, AnInstallServesAndDigestsTheNextVersion) {
  const auto engine = Make(Int8());
  const DigestMap before = engine->served_digests();
  auto staged = engine->Stage(Changed(*engine));
  ASSERT_THAT(staged, IsOk());
  EXPECT_EQ(engine->served_digests(), before) << "a staged version is not live";
  engine->Install(*std::move(staged), WeightVersion{1});
  DigestMap after = engine->served_digests();
  EXPECT_NE(after.at("model.layers.0.down_proj"), before.at("model.layers.0.down_proj"));
  after["model.layers.0.down_proj"] = before.at("model.layers.0.down_proj");
  EXPECT_EQ(after, before) << "nothing else changed";
}

TEST_F(QuantisedEngineTest, TensorsAsTheyAreStoredGiveTheSameMatrices) {
  for (const WeightScheme scheme :
       {WeightScheme::kInt8, WeightScheme::kFp8E4m3, WeightScheme::kInt4Group}) {
    const QuantisationOptions options = {.weights = scheme, .by_layer = {{"o_proj", "dtype"}}};
    const auto engine = Make(With(options));
    const auto plan = MakeQuantisationPlan(engine->config(), options);
    ASSERT_THAT(plan, IsOk());
    std::vector<HostTensor> stored;
    for (const HostTensor& tensor : Changed(*engine)) {
      stored.push_back(StoreTensor(tensor, FormatOf(*plan, tensor.spec.name)));
    }
    const std::vector<TensorSpec> specs =
        StoredTensors(engine->config(), engine->weight_dtype(), *plan);
    for (size_t i = 0; i < specs.size(); ++i) EXPECT_EQ(stored[i].spec, specs[i]);
    const auto from_stored = engine->Stage(stored), from_wide = engine->Stage(Changed(*engine));
    ASSERT_THAT(from_stored, IsOk());
    ASSERT_THAT(from_wide, IsOk());
    EXPECT_EQ((*from_stored)->served_digests, (*from_wide)->served_digests);
    stored.back() = engine->initial_tensors().front();
    EXPECT_THAT(engine->Stage(stored), FailsWith(absl::StatusCode::kInvalidArgument, "tensor "));
  }
}

TEST_F(QuantisedEngineTest, AVersionThatComesBackGivesTheBytesItGaveBefore) {
  const auto engine = Make(Int8());
  const auto run = [&](GroupKey key) {
    EXPECT_THAT(engine->Add(Group(key, 20, 2, 12)), IsOk());
    Completions out = RunToEnd(*engine);
    return out.at(key).at(0).behaviour_logprobs;
  };
  const std::vector<float> want = run(1);
  auto changed = engine->Stage(Changed(*engine));
  ASSERT_THAT(changed, IsOk());
  engine->Install(*std::move(changed), WeightVersion{1});
  EXPECT_NE(run(1), want);
  auto back = engine->Stage(engine->initial_tensors());
  ASSERT_THAT(back, IsOk());
  engine->Install(*std::move(back), WeightVersion{2});
  EXPECT_EQ(run(1), want);
}

TEST_F(QuantisedEngineTest, AKvCacheOfBytesTakesLittleMoreThanHalfOfABf16One) {
  ModelConfig config = Make(Fp32())->config();
  config.head_dim = 64;
  const auto bytes = [&](KvFormat kv) {
    return static_cast<double>(ModelRunner::CacheBytes(config, ComputeDType::kBf16, kv, 100));
  };
  // 64 bytes and a scale of 4, of 128.
  EXPECT_EQ(bytes(KvFormat::kInt8) / bytes(KvFormat::kDtype), 68.0 / 128.0);
  EXPECT_EQ(bytes(KvFormat::kFp8E4m3), bytes(KvFormat::kInt8));
}

TEST_F(QuantisedEngineTest, RefusesOptionsThatContradictEachOther) {
  EXPECT_THAT(Engine::Create(directory(), With({.activations = Activations::kInt8})),
              FailsWith(absl::StatusCode::kInvalidArgument, "set weights to int8 or int4_group"));
  EXPECT_THAT(Engine::Create(directory(), With({.by_layer = {{"99", "int8"}}})),
              FailsWith(absl::StatusCode::kInvalidArgument, "weights_by_layer: '99'"));
}

}  // namespace
}  // namespace tandem::rollout
