// A run that passes its KL budget ends with the weights of its best checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/support/status_matchers.h"
#include "tests/trainer/trainer_fixture.h"
#include "trainer/checkpoints/checkpoint.h"

namespace tandem::trainer {
namespace {

using nlohmann::json;
using ::tandem::testing::IsOk;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

class RollBackTest : public TrainerTest {
 protected:
  RollBackTest() {
    options_.steps = 8;
    options_.learner.measure_reference_kl = true;
    options_.alerts.kl_budget = 0.5;
    options_.alerts.on_kl = OnKl::kRollBack;
    options_.checkpoint.every = 1;
    options_.checkpoint.keep = 1;
    kl_ = {0.1, 0.2, 0.3, 0.9};  // passed at step 4
  }

  json EventOf(const std::string& kind) {
    for (const json& event : Lines("events.jsonl")) {
      if (event["kind"] == kind) return event;
    }
    return {};
  }

  // The number of updates of the newest checkpoint.
  json NewestState() {
    const std::string root = directory_ / "r/checkpoints";
    const std::string latest = *ReadFile(root + "/LATEST");
    return json::parse(*ReadFile(root + "/" + latest.substr(0, latest.find('\n')) + "/state.json"));
  }
};

TEST_F(RollBackTest, EndsWithTheNewestCheckpointWithinTheBudgetAsAFurtherVersion) {
  ASSERT_THAT(Run(), IsOk());
  const json event = EventOf("rolled_back");
  ASSERT_FALSE(event.is_null());
  EXPECT_THAT(
      event["message"].get<std::string>(),
      HasSubstr("at step 4 kl_over_budget is 0.9, threshold 0.5: the weights of step 3 (the "
                "newest within the budget) are version 5"));
  EXPECT_EQ(event["from_step"], 4);
  EXPECT_EQ(event["to_step"], 3);
  EXPECT_EQ(Events().back(), "run_stopped");
  EXPECT_EQ(trained_.size(), 4u);
  const json state = NewestState();
  EXPECT_EQ(state["step"], 5);
  EXPECT_EQ(state["num_updates"], 3) << "weights and optimizer of step 3";
  EXPECT_EQ(server_->live_version(), 5);
}

TEST_F(RollBackTest, HeldOutGoldDecidesWhichCheckpointIsTheBest) {
  options_.reward.weights = {{"exact_match", 1}};
  options_.reward.gold = {"number_answer"};
  ASSERT_THAT(Run(), IsOk());
  // Each step's gold is the same here, so the newest of the best is taken, and it says by what.
  EXPECT_THAT(EventOf("rolled_back")["message"].get<std::string>(),
              HasSubstr("step 3 (reward/gold 0.5, the best of the run)"));
  EXPECT_EQ(Lines("metrics.jsonl")[0]["reward/gold"], 0.5);
}

TEST_F(RollBackTest, WithoutACheckpointWithinTheBudgetTheRunStopsAsItIs) {
  kl_ = {0.9};
  ASSERT_THAT(Run(), IsOk());
  EXPECT_THAT(Events(), Contains("roll_back_failed"));
  EXPECT_THAT(Events(), Not(Contains("rolled_back")));
  EXPECT_EQ(NewestState()["step"], 1);
}

TEST_F(RollBackTest, AResumedRunRemembersItsBestCheckpoint) {
  options_.steps = 2;
  ASSERT_THAT(Run(), IsOk());
  options_.steps = 8;
  kl_ = {0, 0, 0.9};
  ASSERT_THAT(Run(RunMode::kResume), IsOk());
  EXPECT_EQ(EventOf("rolled_back")["to_step"], 2);
  EXPECT_EQ(NewestState()["num_updates"], 2);
}

TEST_F(RollBackTest, ARunThatOnlyStopsKeepsTheWeightsItHas) {
  options_.alerts.on_kl = OnKl::kStop;
  ASSERT_THAT(Run(), IsOk());
  EXPECT_THAT(Events(), Not(Contains("rolled_back")));
  EXPECT_EQ(NewestState()["num_updates"], 4);
  EXPECT_FALSE(std::filesystem::exists(directory_ / "r/checkpoints/best"));
}

}  // namespace
}  // namespace tandem::trainer
