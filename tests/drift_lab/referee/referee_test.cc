#include "drift_lab/referee/referee.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/model/model_config.h"
#include "drift_lab/referee/forward/referee_forward.h"
#include "drift_lab/referee/forward/referee_model.h"
#include "drift_lab/screening/token_pairs.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "trainer/experience/packed_rows.h"
#include "trainer/policy/policy.h"

namespace tandem::drift {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;
using ::tandem::testing::TinyModelConfig;
using ::tandem::testing::TinyModelTensors;
using ::tandem::testing::WriteTinyModel;

constexpr int64_t kPrompt = 6, kDrawn = 16, kRows = 20;

// Rows of random tokens, and what the trainer's forward pass says of them: an engine that shares no
// line with the referee.
class RefereeTest : public ::testing::Test {
 protected:
  RefereeTest() {
    EXPECT_THAT(WriteTinyModel(model_.path(), TANDEM_SOURCE_DIR, config_, 1), IsOk());
    EXPECT_THAT(WriteTinyModel(other_.path(), TANDEM_SOURCE_DIR, config_, 2), IsOk());
    std::mt19937 random(3);
    records_.header.eos_token_ids = {2};
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t t = 0; t < kPrompt + kDrawn; ++t) {
        records_.token_ids.push_back(static_cast<int32_t>(3 + random() % 400));
        records_.drawn.push_back(t >= kPrompt ? 1 : 0);
      }
      records_.offsets.push_back(static_cast<int64_t>(records_.token_ids.size()));
      records_.rows.emplace_back();
    }
    SetColumn(Column::kProximal, TrainerSays(config_, 1));
    options_ = {.model = model_.path(),
                .screen_tokens = 64,
                .verify_tokens = 160,
                .budget_seconds = 600,
                .num_threads = 1};
  }

  std::vector<float> TrainerSays(const ModelConfig& config, uint64_t seed, double temperature = 1,
                                 ComputeDType dtype = ComputeDType::kFp32) const {
    const auto policy = trainer::Policy::Create(config, TinyModelTensors(TinyModelConfig(), seed),
                                                dtype, /*trainable=*/false);
    EXPECT_THAT(policy, IsOk());
    std::vector<float> out;
    for (int64_t row = 0; row < kRows; ++row) {
      const std::span<const int32_t> ids = records_.of_row(records_.token_ids, row);
      trainer::GroupTokens group{.prompt = ids.first(kPrompt)};
      group.completions.emplace_back(ids.subspan(kPrompt));
      const trainer::PackedRow packed = trainer::PackRow({&group, 1}).value();
      const auto scores = (*policy)->Score(packed, temperature, /*with_gradient=*/false);
      EXPECT_THAT(scores, IsOk());
      const float* const logprobs = scores->logprobs.const_data_ptr<float>();
      for (int64_t t = 0; t < packed.num_tokens(); ++t) {
        out.push_back(t < kPrompt ? std::numeric_limits<float>::quiet_NaN() : logprobs[t]);
      }
    }
    return out;
  }

  void SetColumn(Column column, std::vector<float> values) {
    records_.columns[static_cast<size_t>(column)] = std::move(values);
  }

  // The behaviour side's verdict where it says `values`.
  SideReport JudgeBehaviour(std::vector<float> values) {
    SetColumn(Column::kBehaviour, std::move(values));
    const auto report =
        RunReferee(records_, PairsOf(records_), options_, [](const std::string&, double) {});
    EXPECT_THAT(report, IsOk());
    EXPECT_EQ(report->sides.at(1).status, SideStatus::kSameNumbers)
        << "the healthy side is accused";
    return report->sides.at(0);
  }

  const ModelConfig config_ = TinyModelConfig();
  const TempDir model_, other_;
  Records records_;
  RefereeOptions options_;
};

TEST_F(RefereeTest, SaysTheNumbersOfTheTrainersForwardPass) {
  const SideReport side = JudgeBehaviour(TrainerSays(config_, 1));
  EXPECT_EQ(side.status, SideStatus::kSameNumbers);
  EXPECT_LT(side.gap.largest, 1e-3);
  EXPECT_EQ(side.gap.num_tokens, kRows * kDrawn);
}

TEST_F(RefereeTest, SaysOfDrawsWhetherASettingIsClaimedAtAll) {
  const std::vector<float> values = TrainerSays(config_, 1);
  const std::string unclaimed = JudgeBehaviour(values).draws_sentence;
  EXPECT_EQ(unclaimed.find("No setting of the sampler is claimed, "), 0U) << unclaimed;
  records_.header.behaviour.logprobs = "raw";
  records_.header.behaviour.temperature = 0.7;
  const std::string claimed = JudgeBehaviour(values).draws_sentence;
  EXPECT_NE(claimed.find(" claimed (temperature 0.7)"), std::string::npos) << claimed;
}

TEST_F(RefereeTest, NamesAnotherNormEpsilonOnTheSideThatHasIt) {
  ModelConfig config = config_;
  config.rms_norm_eps = 1e-3;
  const SideReport side = JudgeBehaviour(TrainerSays(config, 1));
  ASSERT_EQ(side.status, SideStatus::kNamed) << side.sentence;
  EXPECT_EQ(side.causes.front().cause, "rms_norm_eps") << side.sentence;
}

TEST_F(RefereeTest, NamesAnotherRotaryBase) {
  ModelConfig config = config_;
  config.rope_theta = 1e6;
  const SideReport side = JudgeBehaviour(TrainerSays(config, 1));
  ASSERT_EQ(side.status, SideStatus::kNamed) << side.sentence;
  EXPECT_EQ(side.causes.front().cause, "rope_theta") << side.sentence;
}

TEST_F(RefereeTest, NamesATemperatureWithItsSize) {
  const SideReport side = JudgeBehaviour(TrainerSays(config_, 1, 0.8));
  ASSERT_EQ(side.status, SideStatus::kNamed) << side.sentence;
  EXPECT_EQ(side.causes.front().cause, "temperature") << side.sentence;
  EXPECT_NE(side.sentence.find("temperature 0.8"), std::string::npos) << side.sentence;
}

TEST_F(RefereeTest, NamesATemperatureNearOne) {
  const SideReport side = JudgeBehaviour(TrainerSays(config_, 1, 0.985));
  ASSERT_EQ(side.status, SideStatus::kNamed) << side.sentence;
  EXPECT_NE(side.sentence.find("temperature 0.985"), std::string::npos) << side.sentence;
}

TEST_F(RefereeTest, NamesATemperatureThatDividedLogProbsInPlaceOfLogits) {
  records_.header.behaviour.temperature = 0.5;
  std::vector<float> values = TrainerSays(config_, 1);
  for (float& x : values) x /= 0.5F;
  const SideReport side = JudgeBehaviour(values);
  ASSERT_EQ(side.status, SideStatus::kNamed) << side.sentence;
  EXPECT_EQ(side.causes.front().cause, "temperature_after_softmax") << side.sentence;
}

TEST_F(RefereeTest, NamesRawLogprobsWhereProcessedOnesAreClaimed) {
  records_.header.behaviour.logprobs = "processed";
  records_.header.behaviour.temperature = 0.7;
  const SideReport side = JudgeBehaviour(TrainerSays(config_, 1));
  ASSERT_EQ(side.status, SideStatus::kNamed) << side.sentence;
  EXPECT_EQ(side.claimed.temperature, 0.7);
  EXPECT_NE(side.sentence.find("the model's distribution as it is"), std::string::npos)
      << side.sentence;
}

TEST_F(RefereeTest, SaysThatTheSidesSpeakOfDifferentDistributions) {
  records_.header.behaviour.temperature = 0.7;
  records_.header.behaviour.logprobs = "raw";
  records_.header.proximal.temperature = 0.7;
  SetColumn(Column::kBehaviour, TrainerSays(config_, 1));
  SetColumn(Column::kProximal, TrainerSays(config_, 1, 0.7));
  const auto report =
      RunReferee(records_, PairsOf(records_), options_, [](const std::string&, double) {});
  ASSERT_THAT(report, IsOk());
  EXPECT_EQ(report->sides.at(0).status, SideStatus::kSameNumbers);
  EXPECT_EQ(report->sides.at(1).status, SideStatus::kSameNumbers);
  EXPECT_TRUE(report->headline.starts_with("No side is off, but they speak of different "))
      << report->headline;
}

TEST_F(RefereeTest, NamesTheWeightsOfTheSecondDirectory) {
  options_.weights = other_.path();
  const SideReport side = JudgeBehaviour(TrainerSays(config_, 2));
  ASSERT_EQ(side.status, SideStatus::kNamed) << side.sentence;
  EXPECT_EQ(side.causes.front().cause, "other_weights") << side.sentence;
}

TEST_F(RefereeTest, AbstainsOnWeightsThatAreNotAtHand) {
  const SideReport side = JudgeBehaviour(TrainerSays(config_, 2));
  EXPECT_EQ(side.status, SideStatus::kUnknown) << side.sentence;
}

TEST_F(RefereeTest, QuestionsTheModelWhereBothSidesDifferFromItInTheSameWay) {
  SetColumn(Column::kBehaviour, TrainerSays(config_, 2));
  SetColumn(Column::kProximal, TrainerSays(config_, 2, 1, ComputeDType::kBf16));
  const auto report =
      RunReferee(records_, PairsOf(records_), options_, [](const std::string&, double) {});
  ASSERT_THAT(report, IsOk());
  EXPECT_GT(report->correlation_of_sides, 0.9);
  EXPECT_TRUE(report->headline.starts_with("Both sides differ from the model in the same way"))
      << report->headline;
}

TEST_F(RefereeTest, AbstainsOnNoise) {
  std::vector<float> values = TrainerSays(config_, 1);
  std::mt19937 random(4);
  std::normal_distribution<float> noise(0, 0.5F);
  for (float& value : values) value += noise(random);
  const SideReport side = JudgeBehaviour(values);
  EXPECT_EQ(side.status, SideStatus::kUnknown) << side.sentence;
}

TEST(ResolveModelDirectoryTest, SaysWhatGetsAHubNameThatIsNotHere) {
  const auto found = ResolveModelDirectory("nobody/no-such-model");
  EXPECT_THAT(found, FailsWith(absl::StatusCode::kNotFound, "`hf download nobody/no-such-model`"));
}

TEST_F(RefereeTest, TakesAPathThatIsMissingForNoHubName) {
  options_.model = model_ / "nothing";
  SetColumn(Column::kBehaviour, TrainerSays(config_, 1));
  const auto report =
      RunReferee(records_, PairsOf(records_), options_, [](const std::string&, double) {});
  EXPECT_THAT(report, FailsWith(absl::StatusCode::kNotFound, "found no such directory"));
  EXPECT_EQ(report.status().message().find("hf download"), std::string::npos);
}

TEST_F(RefereeTest, SaysThatAFileIsNoModelDirectory) {
  EXPECT_THAT(ResolveModelDirectory(model_ / "config.json"),
              FailsWith(absl::StatusCode::kNotFound, "found a file"));
}

}  // namespace
}  // namespace tandem::drift
