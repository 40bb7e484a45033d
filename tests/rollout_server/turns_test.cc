// Completions of several turns through real gRPC, on a real engine over a tiny model. Turns end by
// stop ids: every id below 20000, from the third token on.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "common/weights/digest.h"
#include "tests/rollout_server/server_fixture.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "tests/support/wait_until.h"

namespace tandem::rollout {
namespace {

using ::tandem::testing::IsOk;
using testing::GrpcFailsWith;

class TurnsTest : public testing::ServerTest {
 protected:
  void SetUp() override {
    ASSERT_THAT(tandem::testing::WriteTinyModel(directory_.path(), TANDEM_SOURCE_DIR,
                                                tandem::testing::TinyModelConfig(), 11),
                IsOk());
    EngineOptions engine_options;
    engine_options.dtype = ComputeDType::kFp32;
    engine_options.kv_capacity_tokens = 2048;
    auto engine = Engine::Create(directory_.path(), engine_options);
    ASSERT_THAT(engine, IsOk());
    auto server = RolloutServer::Create(options_, {*std::move(engine), testing::ScriptedModel()},
                                        &observation_, MonotonicSeconds);
    ASSERT_THAT(server, IsOk());
    server_ = *std::move(server);
    channel_ = tandem::testing::SecretChannel(server_->address(), kSecret);
    rollout_ = v1::RolloutService::NewStub(channel_);
  }

  static v1::GenerateGroupRequest Episode(int64_t group_id, int32_t max_turns = 3) {
    v1::GenerateGroupRequest request = Request(group_id, 40);
    for (int32_t id = 0; id < 20000; ++id) request.mutable_sampling()->add_stop_token_ids(id);
    request.mutable_sampling()->set_min_new_tokens(3);
    request.mutable_sampling()->set_ignore_eos(true);
    request.mutable_turns()->set_max_turns(max_turns);
    request.mutable_turns()->set_max_completion_tokens(100);
    return request;
  }

  static v1::ContinueCompletionRequest AnswerTo(int64_t group_id, const v1::Turn& turn) {
    v1::ContinueCompletionRequest request;
    request.set_run_id("run");
    request.set_group_id(group_id);
    request.set_index(turn.index());
    request.set_turn(turn.turn());
    for (const int32_t id : {504, 1089, turn.turn()}) request.add_token_ids(id);
    return request;
  }

  grpc::Status Continue(const v1::ContinueCompletionRequest& request) {
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::ContinueCompletionResponse response;
    return rollout_->ContinueCompletion(&context, request, &response);
  }

  // One call that answers every turn; its completions by index.
  struct Played {
    std::vector<v1::Completion> completions;
    std::vector<v1::Turn> turns;
    bool done = false;
    grpc::Status status;
  };
  Played Play(const v1::GenerateGroupRequest& request) {
    grpc::ClientContext context;
    SetDeadline(&context);
    const auto reader = rollout_->GenerateGroup(&context, request);
    Played played;
    played.completions.resize(static_cast<size_t>(request.num_completions()));
    v1::GenerateGroupResponse response;
    while (reader->Read(&response)) {
      if (response.has_turn()) {
        played.turns.push_back(response.turn());
        EXPECT_TRUE(Continue(AnswerTo(request.group_id(), response.turn())).ok());
      } else if (response.has_completion()) {
        played.completions.at(static_cast<size_t>(response.completion().index())) =
            response.completion();
      } else {
        played.done = response.has_done();
      }
    }
    played.status = reader->Finish();
    return played;
  }

  tandem::testing::TempDir directory_;
};

TEST_F(TurnsTest, EveryTurnIsSentAndTheCompletionHasAllOfThem) {
  const Played played = Play(Episode(1));
  ASSERT_TRUE(played.status.ok()) << played.status.error_message();
  EXPECT_TRUE(played.done);
  EXPECT_EQ(played.turns.size(), 4u) << "two completions of three turns, of which two are answered";
  for (const v1::Turn& turn : played.turns) {
    const auto& ids = played.completions.at(static_cast<size_t>(turn.index())).token_ids();
    const int begin = turn.turn() == 1 ? 0 : ids.size();
    EXPECT_EQ(turn.finish_reason(), v1::FINISH_REASON_STOP);
    EXPECT_EQ(turn.token_hash(),
              HashTokenIds({turn.token_ids().data(), static_cast<size_t>(turn.token_ids_size())}));
    if (begin != 0) continue;
    for (int t = 0; t < turn.token_ids_size(); ++t) EXPECT_EQ(turn.token_ids(t), ids[t]);
  }
  for (const v1::Completion& completion : played.completions) {
    ASSERT_EQ(completion.segments_size(), 5);
    int sum = 0, given = 0;
    for (const v1::Segment& segment : completion.segments()) {
      sum += segment.num_tokens();
      given += segment.given() ? segment.num_tokens() : 0;
    }
    EXPECT_EQ(sum, completion.token_ids_size());
    EXPECT_EQ(given, 6);
    EXPECT_EQ(completion.version_spans(0).num_tokens(), sum - given);
    EXPECT_EQ(completion.behaviour_logprobs_size(), sum);
    EXPECT_GT(completion.wait_ms(), 0);
  }
}

TEST_F(TurnsTest, ACallThatJoinsGetsEveryTurnAgainAndMayAnswerThemAgain) {
  grpc::ClientContext context;
  SetDeadline(&context);
  const auto first = rollout_->GenerateGroup(&context, Episode(1, 2));
  v1::GenerateGroupResponse response;
  ASSERT_TRUE(first->Read(&response));
  ASSERT_TRUE(response.has_turn());
  const v1::Turn answered = response.turn();
  EXPECT_TRUE(Continue(AnswerTo(1, answered)).ok());
  grpc::ClientContext again_context;
  SetDeadline(&again_context);
  const auto again = rollout_->GenerateGroup(&again_context, Episode(1, 2));
  std::vector<v1::Turn> turns;
  int num_segments = 0;
  bool done = false;
  const auto take = [&] {
    if (!again->Read(&response)) return false;
    if (response.has_turn()) turns.push_back(response.turn());
    if (response.has_completion()) num_segments += response.completion().segments_size();
    done = done || response.has_done();
    return true;
  };
  while (turns.size() < 2) ASSERT_TRUE(take());
  for (const v1::Turn& turn : turns) {
    const grpc::Status status = Continue(AnswerTo(1, turn));
    if (turn.index() == answered.index()) {  // again: OK as long as the completion has not ended
      EXPECT_TRUE(status.ok() || status.error_code() == grpc::StatusCode::NOT_FOUND);
    } else {
      EXPECT_TRUE(status.ok()) << status.error_message();
    }
  }
  while (take()) continue;
  EXPECT_TRUE(done);
  EXPECT_EQ(num_segments, 2 * 3);
  EXPECT_TRUE(again->Finish().ok());
  int num_completions = 0;
  while (first->Read(&response)) num_completions += response.has_completion();
  EXPECT_EQ(num_completions, 2);
  EXPECT_TRUE(first->Finish().ok());
}

TEST_F(TurnsTest, LeavingTheCallFreesWhatWaits) {
  grpc::ClientContext context;
  SetDeadline(&context);
  const auto reader = rollout_->GenerateGroup(&context, Episode(1));
  v1::GenerateGroupResponse response;
  v1::Turn turn;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(reader->Read(&response));
    turn = response.turn();
  }
  EXPECT_GT(Info().kv_used_tokens(), 0);
  context.TryCancel();
  WaitForInfo([](const auto& info) { return info.num_groups_running() == 0; });
  WaitForInfo([](const auto& info) { return info.kv_used_tokens() == 0; });
  EXPECT_THAT(Continue(AnswerTo(1, turn)),
              GrpcFailsWith(grpc::StatusCode::NOT_FOUND, "no group 1 of run 'run' is in flight"));
}

TEST_F(TurnsTest, AFinishedCompletionIsSentAtOnce) {
  grpc::ClientContext context;
  SetDeadline(&context);
  const auto reader = rollout_->GenerateGroup(&context, Episode(1));
  v1::GenerateGroupResponse response;
  int num_completions = 0;
  while (reader->Read(&response)) {
    if (response.has_completion()) {
      ++num_completions;
      EXPECT_EQ(response.completion().segments_size(), 0) << "one turn";
      EXPECT_EQ(response.completion().finish_reason(), v1::FINISH_REASON_STOP);
    }
    if (!response.has_turn()) continue;
    v1::ContinueCompletionRequest finish = AnswerTo(1, response.turn());
    finish.clear_token_ids();
    finish.set_finish(true);
    EXPECT_TRUE(Continue(finish).ok());
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(num_completions, 2);
}

TEST_F(TurnsTest, OnlyWhoAskedForAGroupMayContinueIt) {
  grpc::ClientContext context;
  SetDeadline(&context);
  const auto reader = rollout_->GenerateGroup(&context, Episode(1));
  v1::GenerateGroupResponse response;
  ASSERT_TRUE(reader->Read(&response));
  const auto other = v1::RolloutService::NewStub(tandem::testing::SecretChannel(
      server_->address(), "another-secret-that-no-other-call-shows"));
  grpc::ClientContext others;
  SetDeadline(&others);
  v1::ContinueCompletionResponse nothing;
  EXPECT_THAT(other->ContinueCompletion(&others, AnswerTo(1, response.turn()), &nothing),
              GrpcFailsWith(grpc::StatusCode::NOT_FOUND, "never asked for by this caller"));
  context.TryCancel();
}

TEST_F(TurnsTest, RequestsAndAnswersThatDoNotFitAreRefused) {
  v1::GenerateGroupRequest whole = Episode(1);
  whole.set_delivery(v1::DELIVERY_GROUP);
  EXPECT_THAT(Generate(whole).status,
              GrpcFailsWith(grpc::StatusCode::INVALID_ARGUMENT, "DELIVERY_MEMBERS is wanted"));
  v1::GenerateGroupRequest none = Episode(1);
  none.mutable_turns()->set_max_turns(0);
  EXPECT_THAT(Generate(none).status,
              GrpcFailsWith(grpc::StatusCode::INVALID_ARGUMENT, "turns.max_turns is 0"));
  v1::ContinueCompletionRequest changed = AnswerTo(1, {});
  changed.set_token_hash(5);
  EXPECT_THAT(Continue(changed), GrpcFailsWith(grpc::StatusCode::INVALID_ARGUMENT,
                                               "token_hash is 5 but the ids hash to"));
  EXPECT_THAT(Continue(AnswerTo(7, {})), GrpcFailsWith(grpc::StatusCode::NOT_FOUND, "no group 7"));
}

}  // namespace
}  // namespace tandem::rollout
