#include "trainer/checkpoints/best_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/files/file_system.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem::trainer {
namespace {

namespace fs = std::filesystem;
using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;

const CheckpointIdentity kModelIdentity = {"config-digest", "tokenizer-hash", "start-digest"};

class BestCheckpointTest : public ::testing::Test {
 protected:
  BestCheckpointTest() {
    EXPECT_THAT(MakeDirectories(directory_ / "model"), IsOk());
    EXPECT_THAT(WriteFileAtomically(directory_ / "model/config.json", "{}"), IsOk());
    EXPECT_THAT(MakeDirectories(root_), IsOk());
  }

  // A checkpoint of `step` as a run saves it, of which one is kept; then it is noted.
  void Saved(BestCheckpoint& best, int64_t step, double gold) {
    auto owner = std::make_shared<std::vector<float>>(2, static_cast<float>(step));
    const HostTensor tensor = {
        .spec = {"w", DType::kF32, {2}}, .bytes = std::as_bytes(std::span(*owner)), .owner = owner};
    ASSERT_THAT(SaveCheckpoint(root_,
                               {.step = step,
                                .run_id = "r",
                                .identity = kModelIdentity,
                                .learner = {.weights = {Present(tensor)},
                                            .optimizer = {Present(tensor)},
                                            .num_updates = step}},
                               directory_ / "model", /*keep=*/1),
                IsOk());
    MetricsLine line(step, 0);
    if (gold >= 0) line.Add("eval/gold", gold);
    ASSERT_THAT(best.Note(step, line), IsOk());
  }

  TempDir directory_;
  const std::string root_ = directory_ / "checkpoints";
};

TEST(BestChoice, AMeasuredCheckpointReplacesOneThatIsNotAndOtherwiseTheLargerValueWins) {
  const BestChoice none = {.step = 1}, low = {2, "eval/gold", 0.5}, high = {3, "eval/gold", 0.7};
  EXPECT_TRUE(Replaces(none, low));
  EXPECT_FALSE(Replaces(low, none));
  EXPECT_TRUE(Replaces(none, {.step = 2})) << "the newest";
  EXPECT_TRUE(Replaces(low, high));
  EXPECT_FALSE(Replaces(high, low));
  EXPECT_TRUE(Replaces(low, {4, "eval/gold", 0.5})) << "the newer of equal ones";
}

TEST_F(BestCheckpointTest, TheBestOutlivesThePruningOfLaterOnes) {
  BestCheckpoint best(root_, "eval/gold");
  Saved(best, 1, 0.5);
  Saved(best, 2, 0.9);
  Saved(best, 3, 0.6);
  EXPECT_FALSE(fs::exists(root_ + "/step_2")) << "keep is 1";
  const auto loaded = best.Load(kModelIdentity);
  ASSERT_THAT(loaded, IsOk());
  EXPECT_EQ(loaded->step, 2);
  EXPECT_EQ(loaded->learner.num_updates, 2);
  EXPECT_FALSE(fs::exists(root_ + "/best/step_1"));
  EXPECT_EQ(Describe(*best.best()), "step 2 (eval/gold 0.9, the best of the run)");
}

TEST_F(BestCheckpointTest, WithoutTheMetricTheNewestIsTheBest) {
  BestCheckpoint best(root_, "eval/gold");
  EXPECT_THAT(best.Load(kModelIdentity),
              FailsWith(absl::StatusCode::kNotFound, "no checkpoint within"));
  Saved(best, 1, -1);
  Saved(best, 2, -1);
  EXPECT_EQ(best.best()->step, 2);
  Saved(best, 3, 0.1);
  Saved(best, 4, -1);
  EXPECT_EQ(best.best()->step, 3) << "measured";
}

TEST_F(BestCheckpointTest, AResumedRunKnowsItUnlessItIsOfALaterStep) {
  BestCheckpoint before(root_, "eval/gold");
  Saved(before, 2, 0.9);
  BestCheckpoint same(root_, "eval/gold"), earlier(root_, "eval/gold"), other(root_, "eval/greedy");
  ASSERT_THAT(same.Open(2), IsOk());
  EXPECT_EQ(same.best()->step, 2);
  ASSERT_THAT(earlier.Open(1), IsOk());
  EXPECT_FALSE(earlier.best().has_value());
  ASSERT_THAT(other.Open(2), IsOk());
  EXPECT_FALSE(other.best().has_value()) << "compared by something else";
  ASSERT_THAT(WriteFileAtomically(root_ + "/best/best.json", "[]"), IsOk());
  EXPECT_THAT(same.Open(2), FailsWith(absl::StatusCode::kDataLoss, "has no \"step\""));
}

}  // namespace
}  // namespace tandem::trainer
