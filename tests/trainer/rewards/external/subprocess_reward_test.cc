// The component `subprocess` with several programs and batches. Single completions:
// ../rewards_test.cc.
#include "trainer/rewards/external/subprocess_reward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/files/file_system.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "trainer/rewards/rewards.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ProgramsTest : public ::testing::Test {
 protected:
  // Rewards by a program in Python, `text`, with the names that most need.
  std::vector<Reward> Run(const std::string& text, const std::vector<std::string>& texts) {
    const std::string script = directory_ / "program.py";
    EXPECT_THAT(WriteFileAtomically(script,
                                    "import json, os, sys\n"
                                    "def say(**what):\n"
                                    "  print(json.dumps(what), flush=True)\n" +
                                        text),
                IsOk());
    options_.weights = {{"subprocess", 1}};
    options_.subprocess.command = {TANDEM_PYTHON, script, directory_.path()};
    rewards_ = *RewardFunction::Create(options_);
    std::vector<RewardInput> inputs;
    for (const std::string& completion : texts) inputs.push_back({.text = completion});
    return rewards_->Score(inputs);
  }

  TempDir directory_;
  RewardOptions options_;
  std::unique_ptr<RewardFunction> rewards_;
};

TEST_F(ProgramsTest, ABatchIsWrittenBeforeItIsAnsweredAndAnswersMayComeInAnyOrder) {
  options_.subprocess.pool.batch_size = 3;
  const auto scored =
      Run("lines = [json.loads(sys.stdin.readline()) for i in range(3)]\n"
          "for r in reversed(lines): say(id=r['id'], reward=len(r['completion']))\n"
          "sys.stdin.read()\n",
          {"a", "bb", "ccc"});
  EXPECT_DOUBLE_EQ(scored[0].value, 1);
  EXPECT_DOUBLE_EQ(scored[1].value, 2);
  EXPECT_DOUBLE_EQ(scored[2].value, 3);
}

// A program that answers each line at once fills the pipe to us while we fill the pipe to it.
TEST_F(ProgramsTest, ABatchThatIsLargerThanThePipesPasses) {
  options_.subprocess.pool.batch_size = 64;
  const auto scored =
      Run("for line in sys.stdin:\n"
          "  r = json.loads(line)\n"
          "  say(id=r['id'], reward=1, note=r['completion'])\n",
          std::vector<std::string>(64, std::string(20'000, 'x')));
  for (const Reward& reward : scored) EXPECT_DOUBLE_EQ(reward.value, 1) << reward.mask_reason;
}

TEST_F(ProgramsTest, ACrashInABatchFailsTheCompletionThatCausesItAndNoOther) {
  options_.subprocess.pool.batch_size = 4;
  const auto scored =
      Run("for line in sys.stdin:\n"
          "  r = json.loads(line)\n"
          "  r['completion'] == 'crash' and os._exit(1)\n"
          "  say(id=r['id'], reward=1)\n",
          {"a", "crash", "b", "c"});
  EXPECT_DOUBLE_EQ(scored[0].value, 1);
  EXPECT_THAT(scored[1].mask_reason, HasSubstr("reward_failed: subprocess: reward program ended"));
  EXPECT_DOUBLE_EQ(scored[2].value, 1);
  EXPECT_DOUBLE_EQ(scored[3].value, 1);
  EXPECT_THAT(scored[2].mask_reason, IsEmpty());
}

TEST_F(ProgramsTest, WhatFailsOnceIsAskedOnceMore) {
  const auto scored =
      Run("mark = sys.argv[1] + '/was_here'\n"
          "for line in sys.stdin:\n"
          "  r = json.loads(line)\n"
          "  if not os.path.exists(mark):\n"
          "    open(mark, 'w').close()\n"
          "    os._exit(1)\n"
          "  say(id=r['id'], reward=0.5)\n",
          {"a"});
  EXPECT_DOUBLE_EQ(scored[0].value, 0.5);
  EXPECT_THAT(scored[0].mask_reason, IsEmpty());
}

// Each program waits for the other one through a pipe with a name: one alone would never answer.
TEST_F(ProgramsTest, SeveralProgramsWorkBesideEachOther) {
  ASSERT_EQ(mkfifo((directory_ / "meeting").c_str(), 0600), 0);
  options_.subprocess.pool.workers = 2;
  const auto scored = Run(
      "for line in sys.stdin:\n"
      "  r = json.loads(line)\n"
      "  with open(sys.argv[1] + '/meeting', 'r' if r['completion'] == 'reader' else 'w'): pass\n"
      "  say(id=r['id'], reward=1)\n",
      {"reader", "writer"});
  EXPECT_DOUBLE_EQ(scored[0].value, 1) << scored[0].mask_reason;
  EXPECT_DOUBLE_EQ(scored[1].value, 1) << scored[1].mask_reason;
}

TEST_F(ProgramsTest, StepsArriveWithTheirWeightAndBadOnesFail) {
  const auto scored =
      Run("for line in sys.stdin:\n"
          "  r = json.loads(line)\n"
          "  say(id=r['id'], reward=0.25, steps=[dict(end=2, reward=1), dict(end=4, reward=-1)])\n",
          {"abcd", "abc"});
  ASSERT_EQ(scored[0].steps.size(), 2u);
  EXPECT_EQ(scored[0].steps[0].end_byte, 2);
  EXPECT_DOUBLE_EQ(scored[0].steps[1].value, -1);
  EXPECT_DOUBLE_EQ(scored[0].value, 0.25);
  EXPECT_THAT(scored[1].mask_reason,
              HasSubstr("step 1 with \"end\" 4: want it after 2 and at most 3"));
}

TEST_F(ProgramsTest, AnErrorOfTheProgramIsItsAnswerAndDoesNotRestartIt) {
  const auto scored =
      Run("seen = 0\n"
          "for line in sys.stdin:\n"
          "  r = json.loads(line)\n"
          "  seen += 1\n"
          "  if r['completion'] == 'odd': say(id=r['id'], error='I cannot tell')\n"
          "  else: say(id=r['id'], reward=seen)\n",
          {"a", "odd", "b"});
  EXPECT_THAT(scored[1].mask_reason, HasSubstr("reward program reports: \"I cannot tell\""));
  EXPECT_DOUBLE_EQ(scored[2].value, 3) << "the same process";
}

TEST_F(ProgramsTest, TheSameCompletionIsAskedAboutOnceWhereTheProgramSaysItMayBe) {
  options_.subprocess.cached = true;
  const std::string count =
      "seen = 0\n"
      "for line in sys.stdin:\n"
      "  seen += 1\n"
      "  say(id=json.loads(line)['id'], reward=seen)\n";
  auto scored = Run(count, {"a", "a", "b", "a"});
  EXPECT_DOUBLE_EQ(scored[1].value, 1);
  EXPECT_DOUBLE_EQ(scored[2].value, 2);
  EXPECT_DOUBLE_EQ(scored[3].value, 1);
  options_.subprocess.cached = false;
  scored = Run(count, {"a", "a"});
  EXPECT_DOUBLE_EQ(scored[1].value, 2);
}

}  // namespace
}  // namespace tandem::trainer
