// What the referee says where settings of the sampler are behind a difference.
#include "drift_lab/referee/referee.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/drift_lab/referee/referee_fixture.h"
#include "tests/support/status_matchers.h"
#include "tests/support/tiny_model.h"

namespace tandem::drift {
namespace {

using ::tandem::testing::IsOk;
using testing::RefereeTest;

// Most of this vocabulary too is in bins beside the kept logits (see token_logits.h). The search for
// settings, which is most of the time, has fewer bins to go through than with 49152 tokens.
ModelConfig SmallVocabulary() {
  ModelConfig config = ::tandem::testing::TinyModelConfig();
  config.vocab_size = 640;
  return config;
}

class SettingsVerdictTest : public RefereeTest {
 protected:
  SettingsVerdictTest() : RefereeTest(SmallVocabulary()) {}
};

TEST_F(SettingsVerdictTest, SaysOfDrawsWhetherASettingIsClaimedAtAll) {
  const std::vector<float> values = TrainerSays(config_, 1);
  const std::string unclaimed = JudgeBehaviour(values).draws_sentence;
  EXPECT_EQ(unclaimed.find("No setting of the sampler is claimed, "), 0U) << unclaimed;
  records_.header.behaviour.logprobs = "raw";
  records_.header.behaviour.temperature = 0.7;
  const std::string claimed = JudgeBehaviour(values).draws_sentence;
  EXPECT_NE(claimed.find(" claimed (temperature 0.7)"), std::string::npos) << claimed;
}

TEST_F(SettingsVerdictTest, NamesATemperatureWithItsSize) {
  const SideReport side = JudgeBehaviour(TrainerSays(config_, 1, 0.8));
  ASSERT_EQ(side.status, SideStatus::kNamed) << side.sentence;
  EXPECT_EQ(side.causes.front().cause, "temperature") << side.sentence;
  EXPECT_NE(side.sentence.find("temperature 0.8"), std::string::npos) << side.sentence;
}

TEST_F(SettingsVerdictTest, NamesATemperatureNearOne) {
  const SideReport side = JudgeBehaviour(TrainerSays(config_, 1, 0.985));
  ASSERT_EQ(side.status, SideStatus::kNamed) << side.sentence;
  EXPECT_NE(side.sentence.find("temperature 0.985"), std::string::npos) << side.sentence;
}

TEST_F(SettingsVerdictTest, NamesATemperatureThatDividedLogProbsInPlaceOfLogits) {
  records_.header.behaviour.temperature = 0.5;
  std::vector<float> values = TrainerSays(config_, 1);
  for (float& x : values) x /= 0.5F;
  const SideReport side = JudgeBehaviour(values);
  ASSERT_EQ(side.status, SideStatus::kNamed) << side.sentence;
  EXPECT_EQ(side.causes.front().cause, "temperature_after_softmax") << side.sentence;
}

TEST_F(SettingsVerdictTest, NamesRawLogprobsWhereProcessedOnesAreClaimed) {
  records_.header.behaviour.logprobs = "processed";
  records_.header.behaviour.temperature = 0.7;
  const SideReport side = JudgeBehaviour(TrainerSays(config_, 1));
  ASSERT_EQ(side.status, SideStatus::kNamed) << side.sentence;
  EXPECT_EQ(side.claimed.temperature, 0.7);
  EXPECT_NE(side.sentence.find("the model's distribution as it is"), std::string::npos)
      << side.sentence;
}

TEST_F(SettingsVerdictTest, SaysThatTheSidesSpeakOfDifferentDistributions) {
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

}  // namespace
}  // namespace tandem::drift
