#include "drift_lab/recompute/capture_weights.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <set>

#include "common/model/safetensors.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/trainer/toy_model.h"
#include "trainer/experience/packed_rows.h"
#include "trainer/policy/policy.h"

namespace tandem::drift {
namespace {

using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;
using ::tandem::testing::ToyConfig;
using ::tandem::testing::ToyWeights;

std::vector<float> Floats(const HostTensor& tensor) {
  std::vector<float> values(tensor.bytes.size() / sizeof(float));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

bool IsBf16(float value) { return (std::bit_cast<uint32_t>(value) & 0xffff) == 0; }

class CaptureWeightsTest : public ::testing::Test {
 protected:
  CaptureWeightsTest() {
    const std::string file = directory_ / "masters.safetensors";
    EXPECT_THAT(WriteSafetensors(file, masters_), IsOk());
    trainer_values_ =
        CaptureWeights(&capture_, config_, directory_.path(), file).Bf16TrainerValues(0).value();
  }

  // A row of one completion of 11 tokens after a prompt of 3, by a bf16 policy of `tensors`.
  std::vector<float> ScoreInBf16(const std::vector<HostTensor>& tensors) const {
    const std::vector<int32_t> prompt = {3, 1, 4}, completion = {1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7};
    trainer::GroupTokens group{.prompt = prompt};
    group.completions.emplace_back(completion);
    const trainer::PackedRow row = trainer::PackRow({&group, 1}).value();
    const auto policy = trainer::Policy::Create(config_, tensors, ComputeDType::kBf16,
                                                /*trainable=*/false);
    EXPECT_THAT(policy, IsOk());
    const auto scores = (*policy)->Score(row, 1, /*with_gradient=*/false);
    EXPECT_THAT(scores, IsOk());
    const float* const logprobs = scores->logprobs.const_data_ptr<float>();
    return {logprobs, logprobs + row.num_tokens()};
  }

  const TempDir directory_;
  const ModelConfig config_ = ToyConfig();
  const offpolicy::Capture capture_;
  const std::vector<HostTensor> masters_ = ToyWeights(config_);
  std::vector<HostTensor> trainer_values_;
};

// The trainer rounds them again, which changes nothing; what it reads in fp32 must be the masters.
TEST_F(CaptureWeightsTest, ABf16TrainerGivesTheSameBitsOnTheWeightsItIsSaidToComputeWith) {
  EXPECT_EQ(ScoreInBf16(trainer_values_), ScoreInBf16(masters_));
}

TEST_F(CaptureWeightsTest, OfABf16TrainerTheMatricesOfTheLayersAreRoundedAndNothingElse) {
  const std::set<std::string> in_fp32 = {"model.embed_tokens.weight",
                                         "model.norm.weight",
                                         "model.layers.0.input_layernorm.weight",
                                         "model.layers.0.post_attention_layernorm.weight",
                                         "model.layers.1.input_layernorm.weight",
                                         "model.layers.1.post_attention_layernorm.weight"};
  ASSERT_EQ(trainer_values_.size(), masters_.size());
  for (size_t i = 0; i < masters_.size(); ++i) {
    const std::string& name = masters_[i].spec.name;
    const std::vector<float> now = Floats(trainer_values_[i]), before = Floats(masters_[i]);
    if (in_fp32.contains(name)) {
      EXPECT_EQ(now, before) << name;
      continue;
    }
    for (size_t k = 0; k < now.size(); ++k) {
      ASSERT_TRUE(IsBf16(now[k])) << name << " " << k;
      ASSERT_NEAR(now[k], before[k], std::abs(before[k]) / 256) << name << " " << k;
    }
  }
}

}  // namespace
}  // namespace tandem::drift
