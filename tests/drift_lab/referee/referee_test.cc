#include "drift_lab/referee/referee.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "drift_lab/referee/forward/referee_forward.h"
#include "drift_lab/referee/forward/referee_model.h"
#include "tests/drift_lab/referee/referee_fixture.h"
#include "tests/support/status_matchers.h"

namespace tandem::drift {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using testing::kDrawn;
using testing::kRows;
using testing::RefereeTest;

TEST_F(RefereeTest, SaysTheNumbersOfTheTrainersForwardPass) {
  const SideReport side = JudgeBehaviour(TrainerSays(config_, 1));
  EXPECT_EQ(side.status, SideStatus::kSameNumbers);
  EXPECT_LT(side.gap.largest, 1e-3);
  EXPECT_EQ(side.gap.num_tokens, kRows * kDrawn);
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
  config.rope.theta = 1e6;
  const SideReport side = JudgeBehaviour(TrainerSays(config, 1));
  ASSERT_EQ(side.status, SideStatus::kNamed) << side.sentence;
  EXPECT_EQ(side.causes.front().cause, "rope_theta") << side.sentence;
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

TEST_F(RefereeTest, PlaysLogitsOfSixteenBits) {
  const auto model = RefereeModel::Load(model_.path(), "");
  ASSERT_THAT(model, IsOk());
  const std::vector<RefereeRow> rows = RefereeRows(records_);
  const auto wide = RefereeForward(**model, std::span(rows).first(1), {}, {});
  const auto bf16 =
      RefereeForward(**model, std::span(rows).first(1), {.logits = Precision::kBf16}, {});
  const auto fp16 =
      RefereeForward(**model, std::span(rows).first(1), {.logits = Precision::kFp16}, {});
  ASSERT_THAT(fp16, IsOk());
  ASSERT_EQ(wide->size(), kDrawn);
  for (size_t i = 0; i < wide->size(); ++i) {
    const float logit = (*wide)[i].token_logit;
    EXPECT_EQ((*bf16)[i].token_logit, static_cast<float>(c10::BFloat16(logit)));
    EXPECT_EQ((*fp16)[i].token_logit, static_cast<float>(c10::Half(logit)));
  }
}

TEST_F(RefereeTest, PlaysAttentionScoresOfSixteenBitsAsASmallChange) {
  const auto model = RefereeModel::Load(model_.path(), "");
  ASSERT_THAT(model, IsOk());
  const std::vector<RefereeRow> rows = RefereeRows(records_);
  const auto wide = RefereeForward(**model, rows, {}, {});
  const auto rounded = RefereeForward(**model, rows, {.scores_bf16 = true}, {});
  ASSERT_THAT(rounded, IsOk());
  double most = 0;
  for (size_t i = 0; i < wide->size(); ++i) {
    most = std::max(
        most, std::abs(ScoreToken((*wide)[i], {}).logprob - ScoreToken((*rounded)[i], {}).logprob));
  }
  EXPECT_GT(most, 1e-4);
  EXPECT_LT(most, 0.5);
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
  EXPECT_THAT(found, FailsWith(absl::StatusCode::kNotFound, "hf download nobody/no-such-model"));
}

TEST_F(RefereeTest, TakesAPathThatIsMissingForNoHubName) {
  options_.model = model_ / "nothing";
  SetColumn(Column::kBehaviour, TrainerSays(config_, 1));
  const auto report =
      RunReferee(records_, PairsOf(records_), options_, [](const std::string&, double) {});
  EXPECT_THAT(report, FailsWith(absl::StatusCode::kNotFound, "no such directory"));
  EXPECT_EQ(report.status().message().find("hf download"), std::string::npos);
}

TEST_F(RefereeTest, SaysThatAFileIsNoModelDirectory) {
  EXPECT_THAT(ResolveModelDirectory(model_ / "config.json"),
              FailsWith(absl::StatusCode::kNotFound, "found a file"));
}

}  // namespace
}  // namespace tandem::drift
