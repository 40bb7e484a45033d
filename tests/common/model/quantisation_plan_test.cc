#include "common/model/quantisation_plan.h"
#include "common/model/formats/plan_text.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace tandem {
namespace {

using testing::FailsWith;
using testing::IsOk;

constexpr auto kBadPlace = absl::StatusCode::kInvalidArgument;

ModelConfig FourLayers() {
  ModelConfig config;
  config.num_layers = 4;
  config.hidden_size = 64;
  config.intermediate_size = 96;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.vocab_size = 100;
  return config;
}

WeightFormat At(const QuantisationPlan& plan, size_t layer, Site site) {
  return plan.layers[layer].at(site);
}

TEST(QuantisationPlanTest, QuantisesNothingByDefault) {
  const auto plan = MakeQuantisationPlan(FourLayers(), {});
  ASSERT_THAT(plan, IsOk());
  EXPECT_FALSE(plan->quantises());
  EXPECT_EQ(PlanText(*plan), "dtype");
}

TEST(QuantisationPlanTest, TheHeadIsFp8BesideFp8LayersAndElseInt8) {
  for (const auto& [layers, head] : {std::pair(WeightScheme::kInt8, WeightScheme::kInt8),
                                     {WeightScheme::kInt4Group, WeightScheme::kInt8},
                                     {WeightScheme::kFp8E4m3, WeightScheme::kFp8E4m3}}) {
    const auto plan = MakeQuantisationPlan(FourLayers(), {.weights = layers});
    ASSERT_THAT(plan, IsOk());
    EXPECT_EQ(plan->head.scheme, head);
    EXPECT_EQ(At(*plan, 3, Site::kDown).scheme, layers);
  }
  const auto wide =
      MakeQuantisationPlan(FourLayers(), {.weights = WeightScheme::kInt8, .head = false});
  ASSERT_THAT(wide, IsOk());
  EXPECT_EQ(wide->head.scheme, WeightScheme::kWide);
}

TEST(QuantisationPlanTest, LaterExceptionsTakePrecedence) {
  const auto plan = MakeQuantisationPlan(FourLayers(), {.weights = WeightScheme::kInt8,
                                                        .by_layer = {{"down_proj", "dtype"},
                                                                     {"1-2", "fp8_e4m3"},
                                                                     {"2.down_proj", "int4_group"},
                                                                     {"head", "dtype"}}});
  ASSERT_THAT(plan, IsOk());
  EXPECT_EQ(PlanText(*plan),
            "layers 0-0: qkv_proj int8, o_proj int8, gate_up_proj int8, down_proj dtype, "
            "1-1: fp8_e4m3, 2-2: qkv_proj fp8_e4m3, o_proj fp8_e4m3, gate_up_proj fp8_e4m3, "
            "down_proj int4_group of 32, 3-3: qkv_proj int8, o_proj int8, gate_up_proj int8, "
            "down_proj dtype; head: dtype; activations: auto");
}

TEST(QuantisationPlanTest, InputsAreInt8ForInt8WeightsUnlessTheOptionsSayOtherwise) {
  const WeightFormat int8 = {WeightScheme::kInt8}, int4 = {WeightScheme::kInt4Group},
                     fp8 = {WeightScheme::kFp8E4m3};
  QuantisationPlan plan;
  EXPECT_TRUE(plan.int8_rows(int8));
  EXPECT_FALSE(plan.int8_rows(int4));
  plan.activations = Activations::kInt8;
  EXPECT_TRUE(plan.int8_rows(int4));
  EXPECT_FALSE(plan.int8_rows(fp8));
  plan.activations = Activations::kDtype;
  EXPECT_FALSE(plan.int8_rows(int8));
}

TEST(QuantisationPlanTest, TheKvCacheIsInTheTextThatBothSidesCompare) {
  const auto plan = MakeQuantisationPlan(FourLayers(), {.kv = KvFormat::kInt8});
  ASSERT_THAT(plan, IsOk());
  EXPECT_EQ(PlanText(*plan), "dtype; kv: int8");
}

TEST(QuantisationPlanTest, RefusesPlacesFormatsAndLayersThatAreNone) {
  const auto make = [](const char* place, const char* format) {
    return MakeQuantisationPlan(FourLayers(), {.by_layer = {{place, format}}}).status();
  };
  EXPECT_THAT(make("q_proj", "int8"),
              FailsWith(kBadPlace, "qkv_proj is q_proj, k_proj and v_proj"));
  EXPECT_THAT(make("1.q_proj", "int8"), FailsWith(kBadPlace, "'1.q_proj' names no place"));
  EXPECT_THAT(make("x.down_proj", "int8"), FailsWith(kBadPlace, "names no place"));
  EXPECT_THAT(make("1-2-3", "int8"), FailsWith(kBadPlace, "names no place"));
  EXPECT_THAT(make("4", "int8"), FailsWith(kBadPlace, "the model has the layers 0 to 3"));
  EXPECT_THAT(make("3-1", "int8"), FailsWith(kBadPlace, "the model has the layers 0 to 3"));
  EXPECT_THAT(make("1", "int5"), FailsWith(kBadPlace, "1 is 'int5', want dtype, int8"));
}

TEST(QuantisationPlanTest, RefusesInt8ActivationsWithoutWeightsThatAreMultipliedAsIntegers) {
  EXPECT_THAT(MakeQuantisationPlan(FourLayers(), {.activations = Activations::kInt8}),
              FailsWith(kBadPlace, "set weights to int8 or int4_group"));
  EXPECT_THAT(MakeQuantisationPlan(FourLayers(), {.weights = WeightScheme::kFp8E4m3,
                                                  .activations = Activations::kInt8}),
              FailsWith(kBadPlace, "set weights to int8 or int4_group"));
}

TEST(QuantisationPlanTest, RefusesInt4ForInputsThatAreNoMultipleOfEight) {
  ModelConfig config = FourLayers();
  config.intermediate_size = 100;
  EXPECT_THAT(MakeQuantisationPlan(config, {.weights = WeightScheme::kInt4Group}),
              FailsWith(kBadPlace, "down_proj of layer 0 has 100 inputs"));
  EXPECT_THAT(MakeQuantisationPlan(config, {.weights = WeightScheme::kInt4Group,
                                            .by_layer = {{"down_proj", "int8"}}}),
              IsOk());
}

}  // namespace
}  // namespace tandem
