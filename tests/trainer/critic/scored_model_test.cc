#include "trainer/critic/scored_model.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/files/file_system.h"
#include "common/model/safetensors.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/trainer/toy_model.h"
#include "trainer/critic/critic_options.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;
using ::tandem::testing::ToyConfig;
using ::tandem::testing::ToyTensor;
using ::tandem::testing::ToyWeights;

// A directory of the toy model for `task`, with `head` beside its weights where it has elements.
void WriteToy(const TempDir& directory, const std::string& task, std::vector<int64_t> head_shape,
              std::vector<float> head) {
  std::string config = ModelConfigToJson(ToyConfig(), DType::kF32);
  const std::string causal = "ForCausalLM";
  config.replace(config.find(causal), causal.size(), task);
  ASSERT_THAT(WriteFileAtomically(directory / "config.json", config), IsOk());
  std::vector<HostTensor> tensors = ToyWeights(ToyConfig());
  if (!head.empty()) {
    tensors.push_back(ToyTensor({kScoreWeight, DType::kF32, std::move(head_shape)}, head));
  }
  ASSERT_THAT(WriteSafetensors(directory / "model.safetensors", tensors), IsOk());
}

TEST(ScoredModel, OfARewardModelHasItsHeadAndItsTrunk) {
  const TempDir directory;
  WriteToy(directory, "ForSequenceClassification", {1, 24}, std::vector<float>(24, 0.5f));
  EXPECT_FALSE(ReadModelConfig(directory.path()).ok()) << "nothing serves it as a language model";
  const auto model = ReadScoredModel(directory.path());
  ASSERT_THAT(model, IsOk());
  ASSERT_TRUE(model->head.has_value());
  EXPECT_EQ(model->head->spec.shape, (std::vector<int64_t>{1, 24}));
  EXPECT_EQ(model->weights.size(), ToyWeights(ToyConfig()).size());
  EXPECT_FALSE(model->of_tokens);
}

TEST(ScoredModel, OfALanguageModelHasNoHead) {
  const TempDir directory;
  WriteToy(directory, "ForCausalLM", {}, {});
  const auto model = ReadScoredModel(directory.path());
  ASSERT_THAT(model, IsOk());
  EXPECT_FALSE(model->head.has_value());
}

TEST(ScoredModel, RefusesAHeadOfAnotherWidth) {
  const TempDir directory;
  WriteToy(directory, "ForTokenClassification", {1, 23}, std::vector<float>(23));
  EXPECT_THAT(ReadScoredModel(directory.path()),
              FailsWith(absl::StatusCode::kInvalidArgument, "should be [heads, 24]"));
}

}  // namespace
}  // namespace tandem::trainer
