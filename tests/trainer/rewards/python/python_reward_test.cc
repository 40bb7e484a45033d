// Functions in Python as components, in real processes. What a function gets and returns in detail:
// python/tests/rewards/.
#include "trainer/rewards/python/python_reward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/files/file_system.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/wait_until.h"
#include "trainer/rewards/rewards.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;
using ::tandem::testing::WaitUntil;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;

class PythonRewardTest : public ::testing::Test {
 protected:
  PythonRewardTest() { options_.python.interpreter = TANDEM_PYTHON; }

  std::string File() const { return directory_ / "my_reward.py"; }

  void Write(const std::string& text) {
    ASSERT_THAT(WriteFileAtomically(File(),
                                    "import json, os, signal, subprocess, sys\n"
                                    "FOLDER = os.path.dirname(__file__)\n" +
                                        text),
                IsOk());
  }

  // Rewards by the functions `names` of a file with `text`.
  std::vector<Reward> Run(const std::string& text, const std::vector<std::string>& texts,
                          const std::vector<std::string>& names = {"score"}) {
    Write(text);
    options_.python.functions.clear();
    for (const std::string& name : names) {
      options_.python.functions.push_back(absl::StrCat(File(), ":", name));
    }
    auto created = RewardFunction::Create(options_);
    EXPECT_THAT(created, IsOk());
    rewards_ = *std::move(created);
    return Score(texts);
  }

  std::vector<Reward> Score(const std::vector<std::string>& texts) {
    std::vector<RewardInput> inputs;
    for (const std::string& completion : texts) {
      inputs.push_back({.text = completion,
                        .answer = "7",
                        .prompt = "rendered",
                        .source_json = source_,
                        .num_tokens = 3,
                        .token_ids = ids_,
                        .step = 4,
                        .num_steps = 9});
    }
    return rewards_->Score(inputs);
  }

  // Whether the process whose id a function wrote to `file` is there and no zombie.
  bool IsAlive(const std::string& file) {
    const std::string pid = ReadFile(directory_ / file).value_or("");
    const std::string stat = ReadFile(absl::StrCat("/proc/", pid, "/stat")).value_or("");
    return stat.find(") ") != std::string::npos && stat[stat.rfind(')') + 2] != 'Z';
  }

  TempDir directory_;
  RewardOptions options_;
  std::string source_ = R"({"prompt": "What?", "answer": "7", "level": 2})";
  std::vector<int32_t> ids_ = {5, 6, 1};
  std::unique_ptr<RewardFunction> rewards_;
};

TEST_F(PythonRewardTest, AFunctionIsAComponentThatCountsOneWithoutWeights) {
  const auto scored =
      Run("def score(completions, answer, level, **kwargs):\n"
          "  return [float(c == a) + l for c, a, l in zip(completions, answer, level)]\n",
          {"7", "8"});
  EXPECT_DOUBLE_EQ(scored[0].value, 3);
  EXPECT_DOUBLE_EQ(scored[1].value, 2);
  EXPECT_THAT(scored[0].parts, ElementsAre(Pair("score", 3)));
}

TEST_F(PythonRewardTest, SeveralFunctionsHaveTheirWeightsAndOneMayBeHeldOut) {
  options_.weights = {{"a", 2}, {"b", -1}};
  options_.weights_are_given = true;
  options_.gold = {"c"};
  const auto scored =
      Run("def a(completions): return [len(c) for c in completions]\n"
          "async def b(completions): return [1 for c in completions]\n"
          "def c(completions): return [10 for c in completions]\n",
          {"xyz"}, {"a", "b", "c"});
  EXPECT_DOUBLE_EQ(scored[0].value, 5);  // 2 * 3 - 1
  EXPECT_EQ(scored[0].gold, 10);
}

TEST_F(PythonRewardTest, NoneHasNoPartInTheSumAndWhereAllAreNoneThereIsNoReward) {
  const auto scored =
      Run("def a(completions): return [None if c == 'none' else 1 for c in completions]\n"
          "def b(completions): return [2 if c == 'both' else None for c in completions]\n",
          {"both", "a", "none"}, {"a", "b"});
  EXPECT_DOUBLE_EQ(scored[0].value, 3);
  EXPECT_DOUBLE_EQ(scored[1].value, 1);
  EXPECT_THAT(scored[1].parts, ElementsAre(Pair("a", 1)));
  EXPECT_THAT(scored[1].mask_reason, IsEmpty());
  EXPECT_EQ(scored[2].mask_reason, kNoRewardApplies);
}

TEST_F(PythonRewardTest, WhatRaisesMasksItsCompletionWithThePlaceAndIsAnEventOnce) {
  const auto scored =
      Run("def score(completions):\n"
          "  return [1 / len(c) for c in completions]\n",
          {"a", "", "bb", ""});
  EXPECT_DOUBLE_EQ(scored[0].value, 1);
  EXPECT_DOUBLE_EQ(scored[2].value, 0.5);
  EXPECT_THAT(scored[1].mask_reason,
              AllOf(HasSubstr("reward_failed: score: ZeroDivisionError: division by zero"),
                    HasSubstr("my_reward.py:4)")));
  const auto events = rewards_->tally()->TakeEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, "reward_raised");
  EXPECT_THAT(events[0].message, HasSubstr("return [1 / len(c) for c in completions]"));
}

TEST_F(PythonRewardTest, WhatItPrintsIsNoAnswer) {
  const auto scored =
      Run("def score(completions):\n"
          "  print('{\"id\":0,\"rewards\":[{\"reward\":9}]}', flush=True)\n"
          "  os.system('echo from a child')\n"
          "  os.write(1, b'raw\\n')\n"
          "  return [1 for c in completions]\n",
          {"a"});
  EXPECT_DOUBLE_EQ(scored[0].value, 1);
}

TEST_F(PythonRewardTest, AnExitOfTheProcessTakesNoOtherCompletionWithIt) {
  const auto scored =
      Run("def score(completions):\n"
          "  if 'exit' in completions: os._exit(3)\n"
          "  if 'quit' in completions: sys.exit('enough')\n"
          "  return [len(c) for c in completions]\n",
          {"a", "exit", "bb", "quit"});
  EXPECT_DOUBLE_EQ(scored[0].value, 1);
  EXPECT_DOUBLE_EQ(scored[2].value, 2);
  EXPECT_THAT(scored[1].mask_reason, HasSubstr("reward worker ended (exit code 3)"));
  EXPECT_THAT(scored[3].mask_reason, HasSubstr("SystemExit: enough"));
}

// A function may compare the completions of a group, so the second try is about the whole group too.
TEST_F(PythonRewardTest, AGroupIsAskedWholeOnceMoreWhenTheProcessIsKilled) {
  const auto scored =
      Run("def score(completions):\n"
          "  if not os.path.exists(FOLDER + '/was_here'):\n"
          "    open(FOLDER + '/was_here', 'w').close()\n"
          "    os.kill(os.getpid(), 9)\n"
          "  return [len(completions) for c in completions]\n",
          {"a", "b", "c"});
  for (const Reward& reward : scored) EXPECT_DOUBLE_EQ(reward.value, 3) << reward.mask_reason;
}

TEST_F(PythonRewardTest, WhatTakesTooLongIsKilledWithWhatItStarted) {
  options_.python.timeout_seconds = 1;
  const auto scored =
      Run("def score(completions):\n"
          "  if 'slow' in completions:\n"
          "    child = subprocess.Popen(['sleep', '600'])\n"
          "    open(FOLDER + '/child', 'w').write(str(child.pid))\n"
          "    child.wait()\n"
          "  return [1 for c in completions]\n",
          {"a", "slow"});
  EXPECT_DOUBLE_EQ(scored[0].value, 1) << scored[0].mask_reason;
  EXPECT_THAT(scored[1].mask_reason,
              HasSubstr("score took more than 1 s (reward.python.timeout_seconds)"));
  EXPECT_TRUE(WaitUntil([&] { return !IsAlive("child"); }));
}

// The child holds the pipes of the process, which ends without it.
TEST_F(PythonRewardTest, AProcessThatEndsAndLeavesAForkIsNotWaitedFor) {
  const auto scored =
      Run("def score(completions):\n"
          "  if 'fork' in completions:\n"
          "    if os.fork() == 0: signal.pause()\n"
          "    os._exit(5)\n"
          "  return [1 for c in completions]\n",
          {"fork", "a"});
  EXPECT_THAT(scored[0].mask_reason, HasSubstr("ended (exit code 5)"));
  EXPECT_DOUBLE_EQ(scored[1].value, 1);
}

TEST_F(PythonRewardTest, WhatTakesTooMuchMemoryIsKilledAndSaysSo) {
  options_.python.memory_limit_mib = 200;
  const auto scored =
      Run("def score(completions):\n"
          "  if 'large' in completions:\n"
          "    held = bytearray(b'x') * (300 << 20)\n"
          "    signal.pause()\n"
          "  return [1 for c in completions]\n",
          {"a", "large"});
  EXPECT_DOUBLE_EQ(scored[0].value, 1) << scored[0].mask_reason;
  EXPECT_THAT(scored[1].mask_reason,
              HasSubstr("score took more than 200 MiB (reward.python.memory_limit_mib)"));
}

TEST_F(PythonRewardTest, WhatIsNoRewardSaysWhatIsWanted) {
  const auto reason = [&](const std::string& returned) {
    return Run("def score(completions): return " + returned + "\n", {"a", "b"})[0].mask_reason;
  };
  EXPECT_THAT(reason("[1]"), HasSubstr("returned 1 rewards for 2 completions: want one for each"));
  EXPECT_THAT(reason("3"), HasSubstr("returned int, want a list of 2 rewards"));
  EXPECT_THAT(reason("['x', 1]"), HasSubstr("reward 0 of score is 'x', str: want a number, None"));
  EXPECT_THAT(reason("[float('nan'), 1]"), HasSubstr("is nan: want a finite number, or None"));
  EXPECT_THAT(reason("[{'rewrad': 1}, 1]"), HasSubstr("has the key rewrad"));
}

TEST_F(PythonRewardTest, PartsStepsAndTokensArriveWithTheirWeight) {
  options_.weights = {{"score", 2}};
  options_.weights_are_given = true;
  const auto scored =
      Run("def score(completions):\n"
          "  return [{'reward': 1, 'parts': {'style': 0.5},\n"
          "           'steps': [{'end': 1, 'reward': 1}, {'end': 2, 'reward': -1}],\n"
          "           'tokens': [0, 0.25, 0]} for c in completions]\n",
          {"\xc3\xa4x"});  // a character of two bytes
  EXPECT_DOUBLE_EQ(scored[0].value, 2);
  EXPECT_THAT(scored[0].parts, ElementsAre(Pair("score", 1), Pair("score/style", 0.5)));
  ASSERT_EQ(scored[0].steps.size(), 2u);
  EXPECT_EQ(scored[0].steps[0].end_byte, 2);
  EXPECT_EQ(scored[0].steps[1].end_byte, 3);
  EXPECT_DOUBLE_EQ(scored[0].steps[1].value, -2);
  EXPECT_THAT(scored[0].token_rewards, ElementsAre(0, 0.5, 0));
}

TEST_F(PythonRewardTest, AGroupIsOneCallWhateverTheBatchAndTheWorkersAre) {
  options_.python.pool.workers = 2;
  options_.python.pool.batch_size = 1;
  const auto scored =
      Run("def score(completions): return [len(completions) for c in completions]\n",
          {"a", "b", "c", "d", "e"});
  for (const Reward& reward : scored) EXPECT_DOUBLE_EQ(reward.value, 5);
}

TEST_F(PythonRewardTest, MetricsThatItLogsAreSummedWithTheirCount) {
  Run("def score(completions, trainer_state, log_metric):\n"
      "  log_metric('step', trainer_state.global_step)\n"
      "  return [1 for c in completions]\n",
      {"a"});
  Score({"b"});
  const RewardNumbers numbers = rewards_->tally()->TakeNumbers();
  EXPECT_EQ(numbers.python_calls, 2);
  EXPECT_THAT(numbers.logged, ElementsAre(Pair("step", Pair(8.0, 2))));
}

TEST_F(PythonRewardTest, ACheckFindsWhatCannotBeCalledBeforeAnythingIsAsked) {
  const auto check = [&](const std::string& text, const std::string& name = "score") {
    Write(text);
    const std::vector<PythonFunction> functions = {{"score", absl::StrCat(File(), ":", name)}};
    return CheckPythonFunctions(functions, options_.python, source_);
  };
  const auto kFault = absl::StatusCode::kFailedPrecondition;
  EXPECT_THAT(check("def score(completions, level): return []\n"), IsOk());
  EXPECT_THAT(check("def score(:\n"), FailsWith(kFault, "my_reward.py:3)"));
  EXPECT_THAT(check("import no_such_package\n"),
              FailsWith(kFault, "ModuleNotFoundError: No module named 'no_such_package'"));
  EXPECT_THAT(check("def scores(completions): return []\n"),
              FailsWith(kFault, "has no score; did you mean scores?"));
  EXPECT_THAT(check("score = [1]\n"), FailsWith(kFault, "is a list, want a function"));
  EXPECT_THAT(check("def score(completions, missing): return []\n"),
              FailsWith(kFault, "needs the argument missing, and gets"));
  options_.python.kwargs = {{"missing", "3"}};
  EXPECT_THAT(check("def score(completions, missing): return []\n"), IsOk());
  options_.python.kwargs = {{"mising", "3"}};
  EXPECT_THAT(check("def score(completions): return []\n"),
              FailsWith(kFault, "no function takes the argument mising"));
}

TEST_F(PythonRewardTest, WithoutAnInterpreterACheckSaysWhatToInstall) {
  options_.python.interpreter = "/nowhere/python3";
  EXPECT_THAT(
      CheckPythonFunctions({{"score", "my_reward.py:score"}}, options_.python, ""),
      FailsWith(absl::StatusCode::kUnavailable, "cannot start reward worker '/nowhere/python3'"));
}

TEST_F(PythonRewardTest, MathReadsNumbersLatexBoxesAndTheAnswersOfGsm8k) {
  options_.weights = {{"math", 1}};
  rewards_ = *RewardFunction::Create(options_);
  const auto value = [&](const std::string& answer, const std::string& text) {
    const std::vector<Reward> scored = rewards_->Score({{.text = text, .answer = answer}});
    EXPECT_THAT(scored[0].mask_reason, IsEmpty());
    return scored[0].value;
  };
  EXPECT_EQ(value("56", "It is 56."), 1);
  EXPECT_EQ(value("56", "It is 57."), 0);
  EXPECT_EQ(value("3 + 4 = 7 #### 7", "so #### 7"), 1);
  EXPECT_EQ(value("1/2", "\\boxed{\\frac{1}{2}}"), 1);
  EXPECT_EQ(value("\\frac{1}{2}", "The answer is 0.5"), 1);
  EXPECT_EQ(value("Thus \\boxed{x^2 + 1}", "We get $1 + x^2$."), 1);
  EXPECT_EQ(value("Thus \\boxed{x^2 + 1}", "We get $x^2 - 1$."), 0);
}

TEST(PythonFunctions, AreReadWithTheirNames) {
  const auto read = [](const std::string& text) { return ParsePythonFunction(text).value(); };
  EXPECT_EQ(read("my_reward.py:score").name, "score");
  EXPECT_EQ(read("trl.rewards:accuracy_reward").spec, "trl.rewards:accuracy_reward");
  EXPECT_EQ(read("my_env.py:env.rubric").name, "rubric");
  EXPECT_EQ(read("overlong=trl.rewards:make(size=3, kind='a:b')").name, "overlong");
  EXPECT_EQ(read("overlong=trl.rewards:make(size=3, kind='a:b')").spec,
            "trl.rewards:make(size=3, kind='a:b')");
  EXPECT_EQ(read("a.py:make(size=3)").name, "make");
  for (const char* const bad : {"my_reward.py", ":score", "a.py:", "a.py:1st", "a.py:f(3"}) {
    EXPECT_THAT(ParsePythonFunction(bad),
                FailsWith(absl::StatusCode::kInvalidArgument, "want FILE"))
        << bad;
  }
}

TEST(PythonFunctions, NeedAWeightOrAPlaceInGoldAndANameOfTheirOwn) {
  const auto create = [](RewardOptions options) {
    return RewardFunction::Create(options).status();
  };
  const auto kBad = absl::StatusCode::kInvalidArgument;
  RewardOptions options = {.weights = {{"format", 1}}, .weights_are_given = true, .format = "a"};
  options.python.functions = {"a.py:score"};
  EXPECT_THAT(create(options), FailsWith(kBad, "score has no weight"));
  options.gold = {"score"};
  EXPECT_THAT(create(options), IsOk());
  options.python.functions = {"a.py:score", "b.py:score"};
  EXPECT_THAT(create(options), FailsWith(kBad, "two functions are called score"));
  options.python.functions = {"a.py:format"};
  EXPECT_THAT(create(options), FailsWith(kBad, "a component of Tandem is called format too"));
}

TEST(PythonFunctions, OfShapingDoNotMakeACompletionCorrect) {
  RewardOptions options;
  options.python.functions = {"a.py:right", "a.py:tidy"};
  options.python.shaping = {"tidy"};
  WeighPythonFunctions(options);
  EXPECT_THAT(Judges(options), ElementsAre(Pair("right", 1)));
  EXPECT_THAT(options.weights, ElementsAre(Pair("right", 1), Pair("tidy", 1)));
}

}  // namespace
}  // namespace tandem::trainer
