// A group's turns between the trainer's client and a real process of Python, with the tokenizer and
// the chat template of SmolLM2.
#include "trainer/environments/environment_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/files/file_system.h"
#include "proto/rollout.pb.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

// Says what it got. A turn "7" ends it, "raise" raises.
constexpr char kEcho[] = R"(
class Echo:
    def reset(self, seed, row):
        self.seed = seed
        self.turns = 0
    def step(self, text):
        self.turns += 1
        if text == "raise": raise ValueError("it broke")
        if text == "7": return None, 1, True
        return f"seed {self.seed}, not {text}", 0.125, False, False, {"turns": self.turns, "out_of_tokens": 9}
)";

class EnvironmentPoolTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_THAT(WriteFileAtomically(directory_ / "echo.py", kEcho), IsOk());
    options_.python = absl::StrCat(directory_ / "echo.py", ":Echo");
    options_.interpreter = TANDEM_PYTHON;
    const std::string model =
        absl::StrCat(std::string(TANDEM_SOURCE_DIR), "/tests/testdata/smollm2-tokenizer");
    auto tokenizer = Tokenizer::Load(model);
    ASSERT_THAT(tokenizer, IsOk());
    tokenizer_ = *std::move(tokenizer);
    auto pool = EnvironmentPool::Create(options_, tokenizer_.get(), {2}, "");
    ASSERT_THAT(pool, IsOk());
    pool_ = *std::move(pool);
    prompt_.set_text("Guess.");
    prompt_.set_source_json("{}");
  }

  static absl::StatusOr<TurnAnswer> Play(TurnPlayer& player, PlayedTurn turn) {
    const auto answer = std::make_shared<std::promise<absl::StatusOr<TurnAnswer>>>();
    turn.ended_by_token = true;
    if (turn.num_tokens_left == 0) turn.num_tokens_left = 1000;
    player.Play(std::move(turn),
                [answer](absl::StatusOr<TurnAnswer> said) { answer->set_value(std::move(said)); });
    return answer->get_future().get();
  }

  std::string TextOf(const absl::StatusOr<TurnAnswer>& answer) {
    return answer.ok() ? tokenizer_->Decode(answer->token_ids, false).value()
                       : answer.status().ToString();
  }

  // A completion of `num_turns` turns of two tokens, with three given between them.
  static rollout::v1::Completion Completion(int index, int num_turns) {
    rollout::v1::Completion completion;
    completion.set_index(index);
    for (int turn = 0; turn < num_turns; ++turn) {
      for (const bool given : {true, false}) {
        if (given && turn == 0) continue;
        auto* const segment = completion.add_segments();
        segment->set_given(given);
        segment->set_num_tokens(given ? 3 : 2);
        for (int i = 0; i < segment->num_tokens(); ++i) completion.add_token_ids(5);
      }
    }
    return completion;
  }

  tandem::testing::TempDir directory_;
  EnvironmentOptions options_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<EnvironmentPool> pool_;
  experience::v1::Prompt prompt_;
};

TEST_F(EnvironmentPoolTest, WhatTheEnvironmentSaysFollowsTheTurnByTheChatTemplate) {
  const auto player = pool_->PlayGroup(prompt_, 1);
  player->Begin(0, 2);
  const std::string said = TextOf(Play(*player, {.index = 0, .turn = 1, .text = "5"}));
  EXPECT_THAT(said, HasSubstr("\n<|im_start|>user\nseed "));
  EXPECT_THAT(said, HasSubstr(", not 5<|im_end|>\n<|im_start|>assistant\n"));
  EXPECT_EQ(TextOf(Play(*player, {.index = 1, .turn = 1, .text = "5"})), said)
      << "completions of a group begin alike";
  const auto end = Play(*player, {.index = 0, .turn = 2, .text = "7"});
  ASSERT_THAT(end, IsOk());
  EXPECT_THAT(end->token_ids, IsEmpty()) << "the completion is finished";
  const auto outcome = player->Outcome(Completion(0, 2));
  EXPECT_THAT(outcome->failure, IsOk());
  EXPECT_THAT(outcome->turn_rewards, ElementsAre(0.125, 1));
  EXPECT_THAT(outcome->turn_ends, ElementsAre(2, 7));
  EXPECT_THAT(outcome->info, ElementsAre(Pair("out_of_tokens", 0), Pair("turns", 1)));
  EXPECT_FALSE(outcome->is_per_turn);
  EXPECT_THAT(outcome->messages_json,
              HasSubstr(R"([{"role":"assistant","content":"5"},{"role":"user","content":"seed )"));
  EXPECT_THAT(outcome->messages_json, HasSubstr(R"({"role":"assistant","content":"7"}])"));
}

TEST_F(EnvironmentPoolTest, ThePromptAndItsEpochDecideTheSeed) {
  const auto first_words = [&](int64_t index, int64_t epoch, int64_t run_seed) {
    prompt_.set_index(index);
    prompt_.set_epoch(epoch);
    const auto player = pool_->PlayGroup(prompt_, run_seed);
    player->Begin(0, 1);
    return TextOf(Play(*player, {.turn = 1, .text = "5"}));
  };
  const std::string said = first_words(3, 0, 1);
  EXPECT_EQ(first_words(3, 0, 1), said);
  EXPECT_NE(first_words(4, 0, 1), said);
  EXPECT_NE(first_words(3, 1, 1), said);
  EXPECT_NE(first_words(3, 0, 2), said);
}

TEST_F(EnvironmentPoolTest, ACallThatIsMadeAgainBeginsAnew) {
  const auto player = pool_->PlayGroup(prompt_, 1);
  player->Begin(0, 1);
  const std::string said = TextOf(Play(*player, {.turn = 1, .text = "5"}));
  player->Begin(0, 1);
  EXPECT_EQ(TextOf(Play(*player, {.turn = 1, .text = "5"})), said);
  EXPECT_THAT(player->Outcome(Completion(0, 1))->turn_rewards, SizeIs(1));
}

TEST_F(EnvironmentPoolTest, AFailureIsOfItsCompletionAndAnEventOnce) {
  const auto player = pool_->PlayGroup(prompt_, 1);
  player->Begin(4, 3);
  for (const int32_t index : {4, 5}) {
    EXPECT_THAT(Play(*player, {.index = index, .turn = 1, .text = "raise"}),
                FailsWith(absl::StatusCode::kAborted, "it broke"));
  }
  EXPECT_THAT(Play(*player, {.index = 6, .turn = 1, .text = "5"}), IsOk());
  EXPECT_THAT(player->Outcome(Completion(4, 1))->failure,
              FailsWith(absl::StatusCode::kAborted, "it broke"));
  EXPECT_THAT(player->Outcome(Completion(6, 1))->failure, IsOk());
  const auto events = pool_->TakeEvents();
  ASSERT_THAT(events, SizeIs(1)) << "both say the same";
  EXPECT_EQ(events[0].kind, "environment_failed");
  EXPECT_THAT(events[0].message, HasSubstr("Traceback"));
}

TEST_F(EnvironmentPoolTest, AnAnswerThatDoesNotFitEndsTheCompletion) {
  const auto player = pool_->PlayGroup(prompt_, 1);
  player->Begin(0, 1);
  const auto answer = Play(*player, {.turn = 1, .text = "5", .num_tokens_left = 4});
  ASSERT_THAT(answer, IsOk());
  EXPECT_THAT(answer->token_ids, IsEmpty());
  EXPECT_THAT(player->Outcome(Completion(0, 1))->info,
              ElementsAre(Pair("out_of_tokens", 1), Pair("turns", 1)));
}

TEST_F(EnvironmentPoolTest, ALastTurnIsPlayedAndNothingFollowsIt) {
  const auto player = pool_->PlayGroup(prompt_, 1);
  player->Begin(0, 1);
  const auto answer = Play(*player, {.turn = 1, .text = "5", .was_cut = true, .is_last = true});
  ASSERT_THAT(answer, IsOk());
  EXPECT_THAT(answer->token_ids, IsEmpty());
  EXPECT_THAT(player->Outcome(Completion(0, 1))->turn_rewards, ElementsAre(0.125));
}

TEST_F(EnvironmentPoolTest, AModelWithoutAChatTemplateIsRefused) {
  const std::string model =
      absl::StrCat(std::string(TANDEM_SOURCE_DIR), "/tests/testdata/smollm2-tokenizer/");
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) {
    ASSERT_THAT(WriteFileAtomically(directory_ / file, *ReadFile(model + file)), IsOk());
  }
  const auto bare = Tokenizer::Load(directory_.path());
  ASSERT_THAT(bare, IsOk());
  EXPECT_THAT(EnvironmentPool::Create(options_, bare->get(), {2}, ""),
              FailsWith(absl::StatusCode::kUnimplemented, "chat template"));
}

}  // namespace
}  // namespace tandem::trainer
