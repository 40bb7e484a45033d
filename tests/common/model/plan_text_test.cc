#include "common/model/formats/plan_text.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace tandem {
namespace {

using testing::FailsWith;
using testing::IsOk;

TEST(PlanTextTest, IsReadBackAsTheSamePlan) {
  ModelConfig config;
  config.num_layers = 4;
  config.hidden_size = 64;
  config.intermediate_size = 96;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.vocab_size = 100;
  const QuantisationOptions cases[] = {
      {},
      {.kv = KvFormat::kFp8E4m3},
      {.weights = WeightScheme::kInt8, .kv = KvFormat::kInt8},
      {.weights = WeightScheme::kFp8E4m3, .head = false},
      {.weights = WeightScheme::kInt4Group, .group = 64, .activations = Activations::kInt8},
      {.weights = WeightScheme::kInt8,
       .by_layer = {{"down_proj", "dtype"}, {"1-2", "fp8_e4m3"}, {"2.o_proj", "int4_group"}}},
      {.by_layer = {{"3.qkv_proj", "int8"}, {"head", "int8"}}, .kv = KvFormat::kInt8},
  };
  for (const QuantisationOptions& options : cases) {
    const auto plan = MakeQuantisationPlan(config, options);
    ASSERT_THAT(plan, IsOk());
    const std::string text = PlanText(*plan);
    const auto read = OptionsOfPlan(text);
    ASSERT_THAT(read, IsOk()) << text;
    const auto again = MakeQuantisationPlan(config, *read);
    ASSERT_THAT(again, IsOk()) << text;
    EXPECT_EQ(PlanText(*again), text);
    EXPECT_EQ(again->layers, plan->layers) << text;
    EXPECT_EQ(again->head, plan->head) << text;
  }
  EXPECT_EQ(OptionsOfPlan("").value(), QuantisationOptions());
}

TEST(PlanTextTest, QuotesWhatIsNone) {
  const auto refuses = [](const char* text, const char* part) {
    EXPECT_THAT(OptionsOfPlan(text), FailsWith(absl::StatusCode::kInvalidArgument, part));
  };
  refuses("int8", "'int8'");
  refuses("layers 0-3: int9; head: int8", "'int9'");
  refuses("layers int8; head: int8", "'int8'");
  refuses("layers 0-3: int8; kv: int4", "'int4'");
  refuses("layers 0-3: int4_group of many", "'int4_group of many'");
}

}  // namespace
}  // namespace tandem
