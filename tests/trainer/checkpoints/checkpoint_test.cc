#include "trainer/checkpoints/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/files/file_system.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem::trainer {
namespace {

namespace fs = std::filesystem;
using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;
using ::testing::HasSubstr;

HostTensor Tensor(const std::string& name, std::vector<float> values) {
  auto owner = std::make_shared<std::vector<float>>(std::move(values));
  return {.spec = {name, DType::kF32, {static_cast<int64_t>(owner->size())}},
          .bytes = std::as_bytes(std::span(*owner)),
          .owner = owner};
}

const CheckpointIdentity kIdentity = {"config-digest", "tokenizer-hash", "start-digest"};

Checkpoint AtStep(int64_t step) {
  const float value = static_cast<float>(step);
  return {.step = step,
          .frontier = {.step = step + 1, .group = 5 * step},
          .planned = {{5 * step, {.prompt = 2, .epoch = 1, .num_completions = 6}}},
          .prompt_counts = {{.prompt = 2, .successes = 0.1, .failures = 1.7, .groups = 3}},
          .run_id = "run-7",
          .order = {11, 4, "prompts-digest"},
          .identity = kIdentity,
          .learner = {.weights = {Present(Tensor("w", {value, 2}))},
                      .optimizer = {Present(Tensor("exp_avg.w", {3, value}))},
                      .num_updates = 2 * step}};
}

float First(const HostTensor& tensor) {
  return *reinterpret_cast<const float*>(tensor.bytes.data());
}

class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest() {
    EXPECT_THAT(MakeDirectories(directory_ / "model"), IsOk());
    EXPECT_THAT(WriteFileAtomically(directory_ / "model/config.json", "{}"), IsOk());
    EXPECT_THAT(MakeDirectories(root_), IsOk());
  }

  absl::Status Save(int64_t step, int64_t keep = 3) {
    return SaveCheckpoint(root_, AtStep(step), directory_ / "model", keep);
  }

  TempDir directory_;
  const std::string root_ = directory_ / "checkpoints";
};

TEST_F(CheckpointTest, GivesEverythingBack) {
  ASSERT_THAT(Save(4), IsOk());
  const auto loaded = LoadLatestCheckpoint(root_, kIdentity);
  ASSERT_THAT(loaded, IsOk());
  const Checkpoint& checkpoint = loaded->checkpoint;
  EXPECT_EQ(checkpoint.step, 4);
  EXPECT_EQ(checkpoint.frontier.step, 5);
  EXPECT_EQ(checkpoint.frontier.group, 20);
  ASSERT_EQ(checkpoint.planned.size(), 1u);
  EXPECT_EQ(checkpoint.planned.at(20).num_completions, 6);
  ASSERT_EQ(checkpoint.prompt_counts.size(), 1u);
  EXPECT_EQ(checkpoint.prompt_counts[0].failures, 1.7) << "to the last bit";
  EXPECT_EQ(checkpoint.run_id, "run-7");
  EXPECT_THAT(CheckSameOrder(checkpoint.order, {11, 4, "prompts-digest"}), IsOk());
  EXPECT_EQ(checkpoint.learner.num_updates, 8);
  EXPECT_EQ(First(*checkpoint.learner.weights[0].read()), 4);
  EXPECT_EQ(checkpoint.learner.optimizer[0].spec.name, "exp_avg.w");
  EXPECT_EQ(First(*checkpoint.learner.optimizer[0].read()), 3);
  EXPECT_TRUE(loaded->refused.empty());
  EXPECT_TRUE(fs::exists(root_ + "/step_4/config.json")) << "loads as a model directory";
}

TEST_F(CheckpointTest, KeepsTheNewestOnesAndNamesTheLast) {
  for (const int64_t step : {1, 2, 10}) ASSERT_THAT(Save(step, 2), IsOk());
  EXPECT_FALSE(fs::exists(root_ + "/step_1"));
  EXPECT_TRUE(fs::exists(root_ + "/step_2"));
  EXPECT_EQ(*ReadFile(root_ + "/LATEST"), "step_10\n");
}

TEST_F(CheckpointTest, SavingAStepAgainReplacesIt) {
  ASSERT_THAT(Save(1), IsOk());
  ASSERT_THAT(Save(1), IsOk());
  EXPECT_THAT(LoadLatestCheckpoint(root_, kIdentity), IsOk());
}

// Moments that other ranks hold may not come.
TEST_F(CheckpointTest, AMomentThatCannotBeReadLeavesTheCheckpointBeforeIt) {
  ASSERT_THAT(Save(1), IsOk());
  Checkpoint checkpoint = AtStep(2);
  checkpoint.learner.optimizer[0].read = [] { return absl::UnavailableError("rank 1 is silent"); };
  EXPECT_THAT(SaveCheckpoint(root_, checkpoint, directory_ / "model", 3),
              FailsWith(absl::StatusCode::kUnavailable, "rank 1 is silent"));
  EXPECT_FALSE(fs::exists(root_ + "/step_2"));
  EXPECT_EQ(LoadLatestCheckpoint(root_, kIdentity)->checkpoint.step, 1);
}

// The writer is killed before each change that it makes to the disk, in turn: every create, write,
// fsync, rename and removal.
TEST_F(CheckpointTest, AWriterKilledAtEachDurablePointLeavesTheCheckpointBeforeOrTheNewOne) {
  int64_t num_points = 0;
  bool saw_before = false;
  for (bool killed = true; killed; ++num_points) {
    ASSERT_LT(num_points, 500) << "the writer never comes to its end";
    fs::remove_all(root_);
    ASSERT_THAT(MakeDirectories(root_), IsOk());
    for (const int64_t step : {1, 2}) ASSERT_THAT(Save(step, 2), IsOk());
    const pid_t writer = fork();
    if (writer == 0) {
      setenv("TANDEM_FAIL_POINT", absl::StrCat("disk: :", num_points + 1).c_str(), 1);
      _exit(Save(3, 2).ok() ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(writer, &status, 0), writer);
    killed = WIFSIGNALED(status);
    ASSERT_TRUE(killed ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0);

    const auto loaded = LoadLatestCheckpoint(root_, kIdentity);
    ASSERT_THAT(loaded, IsOk()) << "killed at point " << num_points + 1;
    const int64_t step = loaded->checkpoint.step;
    EXPECT_TRUE(killed ? step == 2 || step == 3 : step == 3);
    EXPECT_EQ(First(*loaded->checkpoint.learner.weights[0].read()), static_cast<float>(step));
    saw_before |= step == 2;
    // The next run saves over what is left.
    ASSERT_THAT(Save(4, 2), IsOk());
    EXPECT_EQ(LoadLatestCheckpoint(root_, kIdentity)->checkpoint.step, 4);
  }
  EXPECT_TRUE(saw_before);
  EXPECT_GT(num_points, 20) << "points are missing from the file layer";
}

// A resume over a damaged checkpoint saves its step again. Here the one there is the only one.
TEST_F(CheckpointTest, AWriterKilledWhileItReplacesTheOnlyCheckpointLeavesAWholeOne) {
  for (const char* const fail_write : {"", "step_1:EINVAL:exchange"}) {
    for (int64_t point = 1;; ++point) {
      ASSERT_LT(point, 500) << "the writer never comes to its end";
      fs::remove_all(root_);
      ASSERT_THAT(MakeDirectories(root_), IsOk());
      ASSERT_THAT(Save(1), IsOk());
      const pid_t writer = fork();
      if (writer == 0) {
        setenv("TANDEM_FAIL_WRITE", fail_write, 1);
        setenv("TANDEM_FAIL_POINT", absl::StrCat("disk: :", point).c_str(), 1);
        _exit(Save(1).ok() ? 0 : 1);
      }
      int status = 0;
      ASSERT_EQ(waitpid(writer, &status, 0), writer);
      const auto loaded = LoadLatestCheckpoint(root_, kIdentity);
      ASSERT_THAT(loaded, IsOk()) << "killed at point " << point << " with " << fail_write;
      EXPECT_EQ(loaded->checkpoint.step, 1);
      EXPECT_TRUE(loaded->refused.empty());
      if (!WIFSIGNALED(status)) {
        EXPECT_EQ(WEXITSTATUS(status), 0);
        break;
      }
    }
  }
}

// A crash may leave any prefix of the work: each file cut to half, cut to nothing, or not there.
TEST_F(CheckpointTest, FallsBackFromADamagedFileToTheOneBefore) {
  for (const char* const file : {"model.safetensors", "optimizer.safetensors", "state.json",
                                 "manifest.json", "config.json"}) {
    for (const bool removed : {false, true}) {
      ASSERT_THAT(Save(1), IsOk());
      ASSERT_THAT(Save(2), IsOk());
      const std::string path = root_ + "/step_2/" + file;
      if (removed) {
        fs::remove(path);
      } else {
        fs::resize_file(path, fs::file_size(path) / 2);
      }
      const auto loaded = LoadLatestCheckpoint(root_, kIdentity);
      ASSERT_THAT(loaded, IsOk()) << file;
      EXPECT_EQ(loaded->checkpoint.step, 1) << file;
      ASSERT_EQ(loaded->refused.size(), 1u);
      EXPECT_THAT(loaded->refused[0], HasSubstr("step_2/" + std::string(file)));
    }
  }
}

TEST_F(CheckpointTest, AFlippedBitIsFoundByItsDigest) {
  ASSERT_THAT(Save(1), IsOk());
  ASSERT_THAT(Save(2), IsOk());
  std::fstream file(root_ + "/step_2/model.safetensors",
                    std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1, std::ios::end);
  const char last = static_cast<char>(file.get());
  file.seekp(-1, std::ios::end);
  file.put(static_cast<char>(last ^ 1));
  file.close();
  const auto loaded = LoadLatestCheckpoint(root_, kIdentity);
  ASSERT_THAT(loaded, IsOk());
  EXPECT_EQ(loaded->checkpoint.step, 1);
  EXPECT_THAT(loaded->refused[0], HasSubstr("model.safetensors is"));
}

TEST_F(CheckpointTest, AWriterThatDiedLeavesNothingThatIsRead) {
  ASSERT_THAT(Save(1), IsOk());
  fs::rename(root_ + "/step_1", root_ + "/step_2.tmp");
  EXPECT_THAT(LoadLatestCheckpoint(root_, kIdentity),
              FailsWith(absl::StatusCode::kNotFound, "no checkpoint in"));
  fs::rename(root_ + "/step_2.tmp", root_ + "/step_1");
  fs::remove(root_ + "/LATEST");  // died between the rename and LATEST
  EXPECT_THAT(LoadLatestCheckpoint(root_, kIdentity), IsOk());
  fs::create_directory(root_ + "/step_7.tmp");
  ASSERT_THAT(Save(2), IsOk());
  EXPECT_FALSE(fs::exists(root_ + "/step_7.tmp")) << "the next one clears up";
}

TEST_F(CheckpointTest, AllDamagedIsAnErrorThatNamesEach) {
  ASSERT_THAT(Save(1), IsOk());
  fs::remove(root_ + "/step_1/state.json");
  EXPECT_THAT(LoadLatestCheckpoint(root_, kIdentity),
              FailsWith(absl::StatusCode::kDataLoss, "step_1/state.json"));
}

TEST_F(CheckpointTest, NoneAtAllIsAnotherErrorThanADamagedOne) {
  EXPECT_THAT(LoadLatestCheckpoint(root_, kIdentity),
              FailsWith(absl::StatusCode::kNotFound, "no checkpoint in"));
}

TEST_F(CheckpointTest, AnotherOrderOfPromptsIsRefusedWithBothValues) {
  const PromptOrder was = AtStep(1).order;
  EXPECT_THAT(CheckSameOrder(was, {12, 4, "prompts-digest"}),
              FailsWith(absl::StatusCode::kInvalidArgument, "trainer.seed 11, not 12"));
  EXPECT_THAT(CheckSameOrder(was, {11, 8, "prompts-digest"}),
              FailsWith(absl::StatusCode::kInvalidArgument, "trainer.prompts_per_step 4, not 8"));
  EXPECT_THAT(CheckSameOrder(was, {11, 4, "other"}),
              FailsWith(absl::StatusCode::kInvalidArgument, "prompts-digest, not other"));
}

TEST_F(CheckpointTest, AnotherModelOrTokenizerIsRefusedWithTheDifference) {
  ASSERT_THAT(Save(1), IsOk());
  EXPECT_THAT(LoadLatestCheckpoint(root_, {"other", "tokenizer-hash"}),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        "another model configuration (digest config-digest, now other)"));
  EXPECT_THAT(LoadLatestCheckpoint(root_, {"config-digest", "other"}),
              FailsWith(absl::StatusCode::kFailedPrecondition, "another tokenizer"));
}

TEST_F(CheckpointTest, AFullDiskLeavesThePreviousCheckpointStanding) {
  ASSERT_THAT(Save(1), IsOk());
  ASSERT_EQ(setenv("TANDEM_FAIL_WRITE", "step_2.tmp/optimizer:ENOSPC:10", 1), 0);
  EXPECT_THAT(Save(2), FailsWith(absl::StatusCode::kResourceExhausted, "optimizer"));
  ASSERT_EQ(unsetenv("TANDEM_FAIL_WRITE"), 0);
  const auto loaded = LoadLatestCheckpoint(root_, kIdentity);
  ASSERT_THAT(loaded, IsOk());
  EXPECT_EQ(loaded->checkpoint.step, 1);
  EXPECT_TRUE(loaded->refused.empty());
  EXPECT_FALSE(fs::exists(root_ + "/step_2.tmp"));
}

}  // namespace
}  // namespace tandem::trainer
