// Episodes in real processes of Python: what a process that ends, hangs or eats memory takes with it,
// and what it does not. What an environment may return in detail: python/tests/environments/.
#include "trainer/environments/environment_worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/files/file_system.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "trainer/environments/environment_check.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

using Reply = absl::StatusOr<EnvironmentReply>;

// Counts the turns of an episode, and does what a turn says.
constexpr char kEnvironment[] = R"(
import os, signal, threading
HERE = os.path.dirname(os.path.abspath(__file__))

def note(name):
    with open(os.path.join(HERE, name), "a") as file:
        file.write("x")

class Env:
    def __init__(self, greeting="turn"):
        self.greeting = greeting
        self.turns = 0

    def reset(self, seed, row):
        note("resets")
        self.seed = seed
        if row.get("bad"):
            raise ValueError("no such level")

    def step(self, text):
        self.turns += 1
        if text == "raise":
            raise ValueError("it broke")
        if text == "die":
            os._exit(3)
        if text == "die with others":
            threading.Event().wait(1)   # others are at work by then
            os._exit(3)
        if text == "slow":
            threading.Event().wait(1.5)
        if text == "hang":
            threading.Event().wait()
        if text == "eat":
            self.held = bytearray(b"x") * (600 << 20)
            threading.Event().wait()
        if text == "end":
            return None, 2.5, True
        return f"{self.greeting} {self.turns} of seed {self.seed}", 0.5, False, False, {"turns": self.turns}

    def close(self):
        note("closed")
)";

class EnvironmentWorkerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_THAT(WriteFileAtomically(directory_ / "env.py", kEnvironment), IsOk());
    options_.python = absl::StrCat(directory_ / "env.py", ":Env");
    options_.interpreter = TANDEM_PYTHON;
    options_.step_timeout_seconds = 60;
  }

  EnvironmentWorker& Worker() {
    if (worker_ == nullptr) {
      worker_ = std::make_unique<EnvironmentWorker>(options_, "",
                                                    [](const absl::Status&, const std::string&) {});
    }
    return *worker_;
  }

  void Open(int64_t episode, const std::string& row = "{}") {
    Worker().Open(episode, {.row_json = row, .seed = 10 + static_cast<uint64_t>(episode)});
    turns_[episode] = 0;
  }

  std::future<Reply> Ask(int64_t episode, const std::string& text) {
    const auto reply = std::make_shared<std::promise<Reply>>();
    Worker().Step(episode, {.turn = ++turns_[episode], .text = text},
                  [reply](Reply said) { reply->set_value(std::move(said)); });
    return reply->get_future();
  }
  Reply Step(int64_t episode, const std::string& text) { return Ask(episode, text).get(); }

  static std::string Said(const Reply& reply) {
    return reply.ok() ? reply->messages_json : reply.status().ToString();
  }
  static std::string Turn(int turn, int seed) {
    return absl::StrCat(R"([{"role":"user","content":"turn )", turn, " of seed ", seed, "\"}]");
  }
  // How many episodes were reset or closed.
  size_t Count(const std::string& name) { return ReadFile(directory_ / name).value_or("").size(); }

  TempDir directory_;
  EnvironmentOptions options_;
  std::map<int64_t, int32_t> turns_;
  std::unique_ptr<EnvironmentWorker> worker_;
};

TEST_F(EnvironmentWorkerTest, EpisodesArePlayedTurnByTurnBesideEachOther) {
  options_.kwargs = {{"greeting", "hello"}};
  Open(1);
  Open(2);
  EXPECT_EQ(Said(Step(1, "a")), R"([{"role":"user","content":"hello 1 of seed 11"}])");
  const Reply second = Step(2, "a");
  ASSERT_THAT(second, IsOk());
  EXPECT_EQ(second->messages_json, R"([{"role":"user","content":"hello 1 of seed 12"}])");
  EXPECT_EQ(second->reward, 0.5);
  EXPECT_FALSE(second->done);
  EXPECT_THAT(second->info, ElementsAre(Pair("turns", 1)));
  EXPECT_EQ(Said(Step(1, "b")), R"([{"role":"user","content":"hello 2 of seed 11"}])");
  const Reply end = Step(1, "end");
  ASSERT_THAT(end, IsOk());
  EXPECT_TRUE(end->done);
  EXPECT_EQ(end->reward, 2.5);
}

TEST_F(EnvironmentWorkerTest, WhatAnEnvironmentRaisesEndsItsEpisodeAndNoOther) {
  Open(1);
  Open(2);
  Open(3, R"({"bad": true})");
  EXPECT_THAT(Step(1, "raise"), FailsWith(absl::StatusCode::kAborted, "ValueError: it broke"));
  EXPECT_EQ(Said(Step(2, "a")), Turn(1, 12));
  EXPECT_THAT(Step(3, "a"), FailsWith(absl::StatusCode::kAborted, "no such level"))
      << "the reset failed before the first turn was there";
  EXPECT_THAT(Step(1, "a"), FailsWith(absl::StatusCode::kCancelled, "is over"));
}

TEST_F(EnvironmentWorkerTest, AProcessThatEndsTakesNoOtherEpisodeWithIt) {
  Open(1);
  Open(2);
  EXPECT_EQ(Said(Step(2, "a")), Turn(1, 12));
  EXPECT_EQ(Said(Step(1, "a")), Turn(1, 11));
  EXPECT_THAT(Step(1, "die"), FailsWith(absl::StatusCode::kUnavailable, "exit code 3"));
  EXPECT_EQ(Said(Step(2, "b")), Turn(2, 12)) << "it goes on where it was";
  EXPECT_EQ(Count("resets"), 4u)
      << "two at first, the one that ends processes again, then the other";
}

TEST_F(EnvironmentWorkerTest, OfEpisodesAtWorkTogetherOnlyTheOneThatEndsTheProcessFails) {
  for (int64_t episode = 1; episode <= 3; ++episode) Open(episode);
  for (int64_t episode = 1; episode <= 3; ++episode) EXPECT_THAT(Step(episode, "a"), IsOk());
  auto first = Ask(1, "slow"), second = Ask(2, "die with others"), third = Ask(3, "slow");
  EXPECT_EQ(Said(first.get()), Turn(2, 11));
  EXPECT_THAT(second.get(), FailsWith(absl::StatusCode::kUnavailable, "exit code 3"));
  EXPECT_EQ(Said(third.get()), Turn(2, 13));
}

TEST_F(EnvironmentWorkerTest, AProcessThatIsKilledFromOutsideCostsNothing) {
  ASSERT_THAT(WriteFileAtomically(directory_ / "env.py",
                                  "import os, signal\n"
                                  "HERE = os.path.dirname(os.path.abspath(__file__))\n"
                                  "class Env:\n"
                                  "  def reset(self, seed): self.seed = seed\n"
                                  "  def step(self, text):\n"
                                  "    if text == 'killed' and not os.path.exists(HERE + '/was'):\n"
                                  "      open(HERE + '/was', 'w').close()\n"
                                  "      os.kill(os.getpid(), signal.SIGKILL)\n"
                                  "    return f'seed {self.seed}', 0, False\n"),
              IsOk());
  Open(1);
  EXPECT_EQ(Said(Step(1, "a")), R"([{"role":"user","content":"seed 11"}])");
  EXPECT_EQ(Said(Step(1, "killed")), R"([{"role":"user","content":"seed 11"}])");
}

TEST_F(EnvironmentWorkerTest, ATurnThatTakesTooLongFailsAloneAndTheOthersArePlayedAgain) {
  options_.step_timeout_seconds = 3;
  Open(1);
  Open(2);
  EXPECT_EQ(Said(Step(1, "a")), Turn(1, 11));
  EXPECT_EQ(Said(Step(2, "a")), Turn(1, 12));
  EXPECT_THAT(Step(1, "hang"), FailsWith(absl::StatusCode::kDeadlineExceeded,
                                         "more than 3 s (environment.step_timeout_seconds)"));
  EXPECT_EQ(Said(Step(2, "b")), Turn(2, 12));
}

TEST_F(EnvironmentWorkerTest, AProcessOverItsMemoryIsKilled) {
  options_.memory_limit_mib = 400;
  Open(1);
  EXPECT_THAT(Step(1, "eat"), FailsWith(absl::StatusCode::kResourceExhausted,
                                        "400 MiB (environment.memory_limit_mib)"));
  Open(2);
  EXPECT_EQ(Said(Step(2, "a")), Turn(1, 12));
}

TEST_F(EnvironmentWorkerTest, AnEnvironmentThatDoesNotRepeatItselfIsFoundOut) {
  ASSERT_THAT(WriteFileAtomically(directory_ / "env.py",
                                  "import os\n"
                                  "class Env:\n"
                                  "  def reset(self): pass\n"
                                  "  def step(self, text):\n"
                                  "    if text == 'die': os._exit(1)\n"
                                  "    return str(os.getpid()), 0, False\n"),
              IsOk());
  Open(1);
  Open(2);
  EXPECT_THAT(Step(1, "a"), IsOk());
  EXPECT_THAT(Step(2, "die"), FailsWith(absl::StatusCode::kUnavailable, "exit code 1"));
  EXPECT_THAT(Step(1, "b"), FailsWith(absl::StatusCode::kAborted, "repeat"));
}

TEST_F(EnvironmentWorkerTest, AnEpisodeThatIsClosedIsClosedInPython) {
  Open(1);
  EXPECT_THAT(Step(1, "a"), IsOk());
  Worker().Close(1);
  Open(2);
  EXPECT_THAT(Step(2, "a"), IsOk()) << "which is sent after the closing";
  EXPECT_EQ(Count("closed"), 1u);
}

TEST_F(EnvironmentWorkerTest, EpisodesThatAreOpenAtTheEndAreClosed) {
  for (int64_t episode = 1; episode <= 3; ++episode) {
    Open(episode);
    EXPECT_THAT(Step(episode, "a"), IsOk());
  }
  worker_.reset();
  EXPECT_EQ(Count("closed"), 3u);
}

TEST_F(EnvironmentWorkerTest, AnEpisodeThatHasNoRoomForMoreIsAskedWhatItIsWorth) {
  ASSERT_THAT(WriteFileAtomically(directory_ / "env.py",
                                  "class Env:\n"
                                  "  def reset(self, **kwargs): self.sum = 0.5\n"
                                  "  def get_reward(self): return self.sum\n"
                                  "  def add(self, number: int):\n"
                                  "    '''Adds.\n\n    Args:\n      number: what\n    '''\n"
                                  "    self.sum += number\n"
                                  "    return 'a long answer'\n"),
              IsOk());
  Open(1);
  const Reply turn =
      Step(1, R"(<tool_call>{"name": "add", "arguments": {"number": 2}}</tool_call>)");
  ASSERT_THAT(turn, IsOk());
  EXPECT_EQ(turn->reward, std::nullopt);
  std::promise<Reply> said;
  Worker().Finish(1, 1, [&](Reply reply) { said.set_value(std::move(reply)); });
  const Reply end = said.get_future().get();
  ASSERT_THAT(end, IsOk());
  EXPECT_EQ(end->reward, 2.5);
  EXPECT_TRUE(end->done);
}

TEST_F(EnvironmentWorkerTest, WhatNoUtf8CanHoldIsReplaced) {
  ASSERT_THAT(WriteFileAtomically(directory_ / "env.py",
                                  "import os\n"
                                  "class Env:\n"
                                  "  def reset(self): pass\n"
                                  "  def step(self, text):\n"
                                  "    if text == 'die': os._exit(1)\n"
                                  "    return 'bad \\ud800', 0, False\n"),
              IsOk());
  Open(1);
  Open(2);
  EXPECT_EQ(Said(Step(1, "a")), "[{\"role\":\"user\",\"content\":\"bad \xef\xbf\xbd\"}]");
  EXPECT_THAT(Step(2, "die"), FailsWith(absl::StatusCode::kUnavailable, "exit code 1"));
  EXPECT_THAT(Step(1, "b"), IsOk()) << "played again, it says the same";
}

TEST_F(EnvironmentWorkerTest, AColumnThatAResetNeedsIsLookedForAtTheStart) {
  ASSERT_THAT(WriteFileAtomically(directory_ / "env.py",
                                  "class Env:\n"
                                  "  def reset(self, colour, seed): pass\n"
                                  "  def step(self, text): return None, 0, True\n"),
              IsOk());
  EXPECT_THAT(CheckEnvironment(options_, "", R"({"colour": "red"})"), IsOk());
  EXPECT_THAT(CheckEnvironment(options_, "", R"({"size": 3})"),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        "reset needs the argument colour, and gets seed, row and the columns of "
                        "the row (size)"));
  EXPECT_THAT(CheckEnvironment(options_, ""), IsOk()) << "the columns are not known";
}

TEST_F(EnvironmentWorkerTest, WhatWaitsWhenTheRunEndsIsCancelled) {
  Open(1);
  EXPECT_THAT(Step(1, "a"), IsOk());
  auto waits = Ask(1, "hang");
  Worker().Cancel();
  EXPECT_THAT(waits.get(), FailsWith(absl::StatusCode::kCancelled, "the run ends"));
  EXPECT_THAT(Step(1, "b"), FailsWith(absl::StatusCode::kCancelled, "the run ends"));
}

TEST_F(EnvironmentWorkerTest, AProcessThatCannotPlayFailsEveryEpisode) {
  options_.python = absl::StrCat(directory_ / "env.py", ":Missing");
  Open(1);
  EXPECT_THAT(Step(1, "a"), FailsWith(absl::StatusCode::kFailedPrecondition, "has no Missing"));
  EXPECT_THAT(CheckEnvironment(options_, ""),
              FailsWith(absl::StatusCode::kFailedPrecondition, "has no Missing"));
  options_.interpreter = "/nowhere/python3";
  EXPECT_THAT(
      CheckEnvironment(options_, ""),
      FailsWith(absl::StatusCode::kUnavailable, "name it in trainer.environment.interpreter"));
}

TEST_F(EnvironmentWorkerTest, RowsAreTheFirstObservationsOfResets) {
  ASSERT_THAT(WriteFileAtomically(directory_ / "env.py",
                                  "class Env:\n"
                                  "  def reset(self, seed): return f'level {seed}'\n"
                                  "  def step(self, text): return None, 1, True\n"),
              IsOk());
  const auto rows = EnvironmentRows(options_, 2, 5);
  ASSERT_THAT(rows, IsOk());
  ASSERT_THAT(*rows, SizeIs(2));
  EXPECT_THAT((*rows)[1], AllOf(HasSubstr("level 6"), HasSubstr("\"seed\":6")));
  ASSERT_THAT(WriteFileAtomically(directory_ / "env.py", kEnvironment), IsOk());
  EXPECT_THAT(EnvironmentRows(options_, 2, 5), FailsWith(absl::StatusCode::kAborted, "observation"))
      << "its reset gives none";
}

}  // namespace
}  // namespace tandem::trainer
