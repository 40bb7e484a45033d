// Completions of several turns between the trainer's client and a real server with a tiny model.
// Turns end by stop ids: every id below 20000, from the third token on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "proto/rollout.pb.h"
#include "rollout_server/engine/engine.h"
#include "rollout_server/rollout_server.h"
#include "tests/rollout_server/scripted_model.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "trainer/environments/turn_player.h"
#include "trainer/experience/drawn_tokens.h"
#include "trainer/rollouts/rollout_client.h"

namespace tandem {
namespace {

using std::chrono::seconds;
using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using trainer::FinishedGroup;
using trainer::PlayedTurn;
using trainer::TurnAnswer;
using trainer::TurnPlayer;

// Answers turn k of completion i with the ids 504, i, k at once, and notes what it saw.
class ScriptedPlayer : public TurnPlayer {
 public:
  void Begin(int32_t, int32_t num_completions) override {
    MutexLock lock(&mu_);
    ++num_calls;
    num_begun = num_completions;
  }
  void Play(PlayedTurn turn, Reply reply) override {
    absl::StatusOr<TurnAnswer> answer = TurnAnswer{{504, turn.index, turn.turn}};
    {
      MutexLock lock(&mu_);
      ++num_turns;
      num_last += turn.is_last;
      trainer::Episode& episode = episodes_[turn.index];
      if (turn.index == fails)
        answer = episode.failure = absl::InternalError("the environment died");
      if (turn.index == ends) answer = TurnAnswer{};
      episode.turn_rewards.push_back(turn.turn);
      texts[turn.index] += turn.text;
    }
    reply(std::move(answer));
  }
  std::shared_ptr<const trainer::Episode> Outcome(
      const rollout::v1::Completion& completion) override {
    MutexLock lock(&mu_);
    return std::make_shared<trainer::Episode>(episodes_.at(completion.index()));
  }

  Mutex mu_;
  int num_calls = 0, num_begun = 0, num_turns = 0, num_last = 0;
  int fails = -1, ends = -1;  // indices of completions
  std::map<int32_t, std::string> texts;

 private:
  std::map<int32_t, trainer::Episode> episodes_;
};

class PairTurnsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_THAT(tandem::testing::WriteTinyModel(directory_.path(), TANDEM_SOURCE_DIR,
                                                tandem::testing::TinyModelConfig(), 11),
                IsOk());
    rollout::EngineOptions engine_options;
    engine_options.dtype = ComputeDType::kFp32;
    engine_options.kv_capacity_tokens = 2048;
    auto engine = rollout::Engine::Create(directory_.path(), engine_options);
    ASSERT_THAT(engine, IsOk());
    rollout::ServerOptions options;
    options.model = "tiny";
    options.listen = "127.0.0.1:0";
    auto server = rollout::RolloutServer::Create(
        options, {*std::move(engine), rollout::testing::ScriptedModel()}, &observation_);
    ASSERT_THAT(server, IsOk());
    server_ = *std::move(server);
    pool_ = std::make_unique<trainer::ServerPool>(std::vector{server_->address()});
    client_ = std::make_unique<trainer::RolloutClient>(
        pool_.get(), "run", trainer::RolloutClientOptions(), trainer::RolloutClient::Accept());
    ASSERT_EQ(client_->Behind(seconds(20)).size(), 1u);
    client_->MarkReady(0, 0, 0);
  }
  void TearDown() override {
    client_.reset();
    server_.reset();
  }

  static rollout::v1::GenerateGroupRequest Request(int64_t group_id) {
    rollout::v1::GenerateGroupRequest request;
    request.set_run_id("run");
    request.set_group_id(group_id);
    for (const int32_t id : {1, 2, 3}) request.add_prompt_token_ids(id);
    request.set_num_completions(3);
    auto* const sampling = request.mutable_sampling();
    sampling->set_temperature(1);
    sampling->set_max_new_tokens(40);
    sampling->set_min_new_tokens(3);
    sampling->set_ignore_eos(true);
    for (int32_t id = 0; id < 20000; ++id) sampling->add_stop_token_ids(id);
    request.mutable_turns()->set_max_turns(3);
    request.mutable_turns()->set_max_completion_tokens(150);
    return request;
  }

  FinishedGroup Sample(const rollout::v1::GenerateGroupRequest& request) {
    client_->Submit(request, trainer::kAnyServer, {}, player_);
    const auto group = client_->Next(seconds(60));
    EXPECT_THAT(group, IsOk());
    return group.ok() && group->has_value() ? **group : FinishedGroup{.group_id = -1};
  }

  tandem::testing::TempDir directory_;
  Observation observation_{"rollout_server"};
  std::unique_ptr<rollout::RolloutServer> server_;
  std::shared_ptr<ScriptedPlayer> player_ = std::make_shared<ScriptedPlayer>();
  std::unique_ptr<trainer::ServerPool> pool_;
  std::unique_ptr<trainer::RolloutClient> client_;
};

TEST_F(PairTurnsTest, ThePlayerAnswersEveryTurnAndTheGroupComesBackWhole) {
  const FinishedGroup group = Sample(Request(1));
  ASSERT_THAT(group.status, IsOk());
  ASSERT_EQ(group.completions.size(), 3u);
  EXPECT_EQ(player_->num_calls, 1);
  EXPECT_EQ(player_->num_begun, 3);
  EXPECT_EQ(player_->num_turns, 9) << "three completions of three turns";
  EXPECT_EQ(player_->num_last, 3) << "nothing follows the third";
  for (const auto& completion : group.completions) {
    EXPECT_EQ(trainer::NumTurns(completion), 3);
    const std::vector<int32_t> turns = trainer::TurnsOf(completion);
    std::vector<int32_t> given;
    for (size_t t = 0; t < turns.size(); ++t) {
      if (turns[t] == 0) given.push_back(completion.token_ids(static_cast<int>(t)));
    }
    const int32_t i = completion.index();
    EXPECT_THAT(given, ::testing::ElementsAre(504, i, 1, 504, i, 2));
  }
  ASSERT_EQ(group.episodes.size(), 3u);
  for (const auto& [index, episode] : group.episodes) {
    EXPECT_THAT(episode->failure, IsOk());
    EXPECT_THAT(episode->turn_rewards, ::testing::ElementsAre(1, 2, 3)) << "in order";
  }
}

TEST_F(PairTurnsTest, TheTextOfEachTurnIsTheModelsAlone) {
  const FinishedGroup group = Sample(Request(1));
  ASSERT_THAT(group.status, IsOk());
  for (const auto& completion : group.completions) {
    std::string turns;
    for (const auto& segment : completion.segments()) {
      EXPECT_EQ(segment.text().empty(), segment.given());
      turns += segment.text();
    }
    EXPECT_EQ(player_->texts.at(completion.index()), turns);
    EXPECT_EQ(trainer::LastTurnText(completion), completion.segments(4).text());
  }
}

TEST_F(PairTurnsTest, AGroupThatTheServerHasFinishedIsPlayedAgainTurnByTurn) {
  const FinishedGroup first = Sample(Request(1));
  player_ = std::make_shared<ScriptedPlayer>();
  const FinishedGroup again = Sample(Request(1));
  ASSERT_THAT(again.status, IsOk());
  EXPECT_EQ(player_->num_turns, 9) << "by one who has not played it before";
  EXPECT_EQ(player_->num_last, 3);
  for (int32_t i = 0; i < 3; ++i) {
    EXPECT_THAT(again.episodes.at(i)->turn_rewards, ::testing::ElementsAre(1, 2, 3));
    EXPECT_EQ(again.completions[static_cast<size_t>(i)].token_hash(),
              first.completions[static_cast<size_t>(i)].token_hash());
  }
}

TEST_F(PairTurnsTest, APlayerThatDoesNotRepeatItselfHasNoRewardForWhatWasSampledBefore) {
  ASSERT_THAT(Sample(Request(1)).status, IsOk());
  player_ = std::make_shared<ScriptedPlayer>();
  player_->ends = 2;
  const FinishedGroup again = Sample(Request(1));
  ASSERT_THAT(again.status, IsOk());
  EXPECT_THAT(again.episodes.at(0)->failure, IsOk());
  EXPECT_THAT(again.episodes.at(2)->failure,
              FailsWith(absl::StatusCode::kAborted, "did not repeat itself"));
}

TEST_F(PairTurnsTest, APlayerThatFailsEndsItsCompletionAndNoOther) {
  player_->fails = 1;
  const FinishedGroup group = Sample(Request(1));
  ASSERT_THAT(group.status, IsOk());
  EXPECT_EQ(trainer::NumTurns(group.completions[0]), 3);
  EXPECT_EQ(trainer::NumTurns(group.completions[1]), 1);
  EXPECT_EQ(trainer::NumTurns(group.completions[2]), 3);
  EXPECT_THAT(group.episodes.at(0)->failure, IsOk());
  EXPECT_EQ(group.episodes.at(1)->failure.message(), "the environment died");
}

TEST_F(PairTurnsTest, APlayerMayEndACompletion) {
  player_->ends = 2;
  const FinishedGroup group = Sample(Request(1));
  ASSERT_THAT(group.status, IsOk());
  EXPECT_EQ(trainer::NumTurns(group.completions[2]), 1);
  EXPECT_FALSE(trainer::HasTurns(group.completions[2])) << "as a completion of one turn";
  EXPECT_THAT(group.episodes.at(2)->failure, IsOk());
}

TEST_F(PairTurnsTest, TheSameGroupOfOneTurnIsSampledAsWithoutTurns) {
  rollout::v1::GenerateGroupRequest plain = Request(1), episode = Request(2);
  plain.clear_turns();
  episode.mutable_turns()->set_max_turns(1);
  const FinishedGroup want = Sample(plain), got = Sample(episode);
  ASSERT_THAT(got.status, IsOk());
  for (size_t i = 0; i < 3; ++i) {
    rollout::v1::Completion a = want.completions[i], b = got.completions[i];
    for (auto* const one : {&a, &b}) {
      one->clear_decode_ms();
      one->clear_longest_gap_ms();
      one->clear_prefix_cached();
    }
    EXPECT_EQ(a.SerializeAsString(), b.SerializeAsString());
  }
  EXPECT_EQ(player_->num_turns, 3) << "the only turn of each of the episode's completions";
  EXPECT_EQ(player_->num_last, 3);
}

}  // namespace
}  // namespace tandem
