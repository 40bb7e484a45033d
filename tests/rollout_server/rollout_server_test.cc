// RolloutService and the life of the server, through real gRPC.
#include "rollout_server/rollout_server.h"

#include <fstream>
#include <future>

#include "common/weights/digest.h"
#include "tests/rollout_server/server_fixture.h"
#include "tests/support/temp_dir.h"
#include "tests/support/wait_until.h"

namespace tandem::rollout {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using testing::GrpcFailsWith;
using testing::ScriptedEngine;
using testing::ScriptedModel;

class RolloutServerTest : public testing::ServerTest {};

TEST_F(RolloutServerTest, StreamsEveryCompletionWithItsPapersAndGroupDoneLast) {
  gate_.Open();
  const Outcome outcome = Generate(Request(9));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  ASSERT_EQ(outcome.responses.size(), 3u);
  const v1::Completion& second = outcome.responses[1].completion();
  EXPECT_EQ(outcome.responses[1].group_id(), 9);
  EXPECT_EQ(second.index(), 1);
  EXPECT_THAT(second.token_ids(), ::testing::ElementsAre(100, 101));
  EXPECT_THAT(second.behaviour_logprobs(), ::testing::ElementsAre(-0.5f, -0.5f));
  EXPECT_EQ(second.version_spans_size(), 1);
  EXPECT_EQ(second.version_spans(0).num_tokens(), 2);
  EXPECT_EQ(second.finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(second.token_hash(), HashTokenIds(std::vector<int32_t>{100, 101}));
  EXPECT_EQ(outcome.responses[2].done().num_completions(), 2);
}

TEST_F(RolloutServerTest, ARepeatedCallJoinsTheRunningGroupAndGetsAllOfIt) {
  auto first = std::async(std::launch::async, [&] { return Generate(Request(1)); });
  WaitForInfo([](const auto& info) { return info.num_groups_queued() == 1; });
  auto second = std::async(std::launch::async, [&] { return Generate(Request(1)); });
  gate_.Open();
  EXPECT_EQ(first.get().responses.size(), 3u);
  EXPECT_EQ(second.get().responses.size(), 3u);
  EXPECT_EQ(Info().num_tokens_sampled(), 4u);  // 2 completions of 2 tokens, once
}

TEST_F(RolloutServerTest, ARepeatedCallAfterALostReplyGetsTheSameResult) {
  gate_.Open();
  const Outcome first = Generate(Request(1));
  const Outcome again = Generate(Request(1));
  ASSERT_EQ(again.responses.size(), 3u);
  EXPECT_EQ(again.responses[0].SerializeAsString(), first.responses[0].SerializeAsString());
  EXPECT_EQ(Info().num_tokens_sampled(), 4u);
}

TEST_F(RolloutServerTest, CancellingTheLastCallFreesTheGroup) {
  grpc::ClientContext context;
  SetDeadline(&context);
  auto reader = rollout_->GenerateGroup(&context, Request(1, 500));
  WaitForInfo([](const auto& info) { return info.num_groups_queued() == 1; });
  gate_.Allow(3);
  WaitForInfo([](const auto& info) { return info.num_groups_running() == 1; });
  context.TryCancel();
  v1::GenerateGroupResponse response;
  while (reader->Read(&response)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  WaitForInfo([](const auto& info) { return info.num_groups_running() == 0; });
  gate_.Allow(5);  // far from enough to finish it: only freeing empties the cache
  WaitForInfo([](const auto& info) { return info.kv_used_tokens() == 0; });
}

TEST_F(RolloutServerTest, AGroupWhoseDeadlinePassesIsFreed) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(50));
  auto reader = rollout_->GenerateGroup(&context, Request(1, 500));
  v1::GenerateGroupResponse response;
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  WaitForInfo([](const auto& info) { return info.num_groups_queued() == 0; });
}

TEST_F(RolloutServerTest, AFullQueueIsResourceExhaustedWithARetryHint) {
  auto one = std::async(std::launch::async, [&] { return Generate(Request(1)); });
  auto two = std::async(std::launch::async, [&] { return Generate(Request(2)); });
  WaitForInfo([](const auto& info) { return info.num_groups_queued() == 2; });
  const Outcome refused = Generate(Request(3));
  EXPECT_THAT(refused.status, GrpcFailsWith(grpc::StatusCode::RESOURCE_EXHAUSTED, "2 groups wait"));
  EXPECT_EQ(refused.retry_after_ms, "500");
  EXPECT_EQ(refused.refusal, "QUEUE_FULL");
  gate_.Open();
  EXPECT_TRUE(one.get().status.ok());
  EXPECT_TRUE(two.get().status.ok());
  EXPECT_TRUE(Generate(Request(3)).status.ok());
}

TEST_F(RolloutServerTest, AbortGroupEndsTheCallWithAborted) {
  auto call = std::async(std::launch::async, [&] { return Generate(Request(1)); });
  WaitForInfo([](const auto& info) { return info.num_groups_queued() == 1; });
  for (const bool expected : {true, false}) {
    grpc::ClientContext context;
    v1::AbortGroupRequest request;
    request.set_run_id("run");
    request.set_group_id(1);
    v1::AbortGroupResponse response;
    EXPECT_TRUE(rollout_->AbortGroup(&context, request, &response).ok());
    EXPECT_EQ(response.aborted(), expected);
  }
  EXPECT_THAT(call.get().status, GrpcFailsWith(grpc::StatusCode::ABORTED, "group 1 was aborted"));
}

TEST_F(RolloutServerTest, AGroupStoppedEarlyComesOutAsItIsAndIsMarkedIncomplete) {
  auto call = std::async(std::launch::async, [&] { return Generate(Request(1, 900)); });
  gate_.Allow(2);
  WaitForInfo([](const auto& info) { return info.num_tokens_sampled() == 4; });
  v1::AbortGroupRequest request;
  request.set_run_id("run");
  request.set_group_id(1);
  request.set_finish_early(true);
  grpc::ClientContext context;
  v1::AbortGroupResponse response;
  EXPECT_TRUE(rollout_->AbortGroup(&context, request, &response).ok());
  EXPECT_TRUE(response.aborted());
  gate_.Allow(1);  // the step that runs ends, then the command does
  const Outcome outcome = call.get();
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  ASSERT_EQ(outcome.responses.size(), 3u);
  EXPECT_EQ(outcome.responses[0].completion().token_ids_size(), 3);
  EXPECT_TRUE(outcome.responses[2].done().incomplete());
}

TEST_F(RolloutServerTest, AGroupStoppedBeforeItsFirstTokenIsAborted) {
  max_running_ = 1;
  server_.reset();
  StartServer();
  auto running = std::async(std::launch::async, [&] { return Generate(Request(1, 3)); });
  WaitForInfo([](const auto& info) { return info.num_groups_queued() == 1; });
  auto waiting = std::async(std::launch::async, [&] { return Generate(Request(2, 3)); });
  WaitForInfo([](const auto& info) { return info.num_groups_queued() == 2; });
  v1::AbortGroupRequest request;
  request.set_run_id("run");
  request.set_group_id(2);
  request.set_finish_early(true);
  grpc::ClientContext context;
  v1::AbortGroupResponse response;
  EXPECT_TRUE(rollout_->AbortGroup(&context, request, &response).ok());
  gate_.Open();
  EXPECT_THAT(waiting.get().status, GrpcFailsWith(grpc::StatusCode::ABORTED, "nothing drawn yet"));
  EXPECT_TRUE(running.get().status.ok());
}

TEST_F(RolloutServerTest, AWholeGroupComesByIndexWhenItsLastCompletionEnds) {
  v1::GenerateGroupRequest request = Request(1, 4);
  request.set_delivery(v1::DELIVERY_GROUP);
  gate_.Open();
  const Outcome outcome = Generate(request);
  ASSERT_TRUE(outcome.status.ok());
  ASSERT_EQ(outcome.responses.size(), 3u);
  EXPECT_EQ(outcome.responses[0].completion().index(), 0);
  EXPECT_EQ(outcome.responses[1].completion().index(), 1);
  EXPECT_TRUE(outcome.responses[2].has_done());
  EXPECT_FALSE(outcome.responses[2].done().incomplete());
}

TEST_F(RolloutServerTest, ARepetitionPenaltyIsRefusedWithTheReason) {
  v1::GenerateGroupRequest request = Request(1);
  request.mutable_sampling()->set_repetition_penalty(1.2f);
  EXPECT_THAT(Generate(request).status,
              GrpcFailsWith(grpc::StatusCode::INVALID_ARGUMENT, "repetition_penalty is 1.2"));
}

TEST_F(RolloutServerTest, ABadRequestIsRefusedByFieldAndTheServerLives) {
  gate_.Open();
  const auto refuse = [&](auto change, const char* message) {
    v1::GenerateGroupRequest request = Request(1);
    change(request);
    EXPECT_THAT(Generate(request).status,
                GrpcFailsWith(grpc::StatusCode::INVALID_ARGUMENT, message));
  };
  refuse([](auto& r) { r.clear_sampling(); }, "sampling is missing");
  refuse([](auto& r) { r.clear_prompt_token_ids(); }, "prompt_token_ids is empty");
  refuse([](auto& r) { r.set_num_completions(-1); }, "num_completions is -1");
  refuse([](auto& r) { r.set_prompt_hash(12345); }, "the prompt changed on the way");
  refuse([](auto& r) { r.mutable_sampling()->set_max_new_tokens(998); },
         "over the context of 1000");
  refuse([](auto& r) { r.mutable_admission_batch()->set_num_groups(0); }, "num_groups is 0");
  v1::GenerateGroupRequest right = Request(1);
  right.set_prompt_hash(HashTokenIds(std::vector<int32_t>{1, 2, 3}));
  EXPECT_TRUE(Generate(right).status.ok());
}

TEST_F(RolloutServerTest, LiveWeightsOlderThanTheCallWantsAreRefused) {
  v1::GenerateGroupRequest request = Request(1);
  request.set_min_weight_version(3);
  EXPECT_THAT(Generate(request).status,
              GrpcFailsWith(grpc::StatusCode::FAILED_PRECONDITION,
                            "live weights are version 0, the call wants at least 3"));
}

TEST_F(RolloutServerTest, ASecondRunIsRefusedAndAClientWithoutOwnershipIsServed) {
  gate_.Open();
  ASSERT_TRUE(Claim("owner", 1).ok());
  EXPECT_THAT(Generate(Request(1, 2, "intruder")).status,
              GrpcFailsWith(grpc::StatusCode::FAILED_PRECONDITION, "run 'owner' owns this server"));
  EXPECT_TRUE(Generate(Request(1, 2, "")).status.ok());
  EXPECT_TRUE(Generate(Request(1, 2, "owner")).status.ok());
  EXPECT_EQ(Info().owner_run_id(), "owner");
  clock_skew_ = 61;  // the lease of 60 s is over
  EXPECT_TRUE(Generate(Request(2, 2, "intruder")).status.ok());
}

TEST_F(RolloutServerTest, ScoresThroughTheAskedPathAndChecksIds) {
  gate_.Open();
  const auto score = [&](std::vector<int32_t> ids, uint64_t hash, v1::ScoreResponse* response) {
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::ScoreRequest request;
    request.set_temperature(0.5f);
    request.set_path(v1::SCORE_PATH_PREFILL);
    auto* sequence = request.add_sequences();
    sequence->mutable_token_ids()->Add(ids.begin(), ids.end());
    sequence->set_token_hash(hash);
    return rollout_->Score(&context, request, response);
  };
  v1::ScoreResponse response;
  ASSERT_TRUE(score({5, 6, 7}, 0, &response).ok());
  EXPECT_THAT(response.scores(0).logprobs(), ::testing::ElementsAre(0, -0.5f, -0.5f));
  EXPECT_THAT(score({5}, 0, &response),
              GrpcFailsWith(grpc::StatusCode::INVALID_ARGUMENT, "sequence 0 has 1 ids"));
  EXPECT_THAT(score({5, 1000}, 0, &response),
              GrpcFailsWith(grpc::StatusCode::INVALID_ARGUMENT, "id 1000 outside the vocabulary"));
  EXPECT_THAT(score({5, 6}, 7, &response),
              GrpcFailsWith(grpc::StatusCode::INVALID_ARGUMENT, "token_hash of sequence 0"));
}

TEST_F(RolloutServerTest, AScoreCarriesEveryFactorAndRefusesBadOnesByName) {
  gate_.Open();
  v1::ScoreResponse response;
  const auto score = [&](const v1::ScoreRequest& request) {
    grpc::ClientContext context;
    SetDeadline(&context);
    return rollout_->Score(&context, request, &response);
  };
  v1::ScoreRequest request;
  auto* sequence = request.add_sequences();
  for (const int32_t id : {5, 6, 7}) sequence->add_token_ids(id);
  ASSERT_TRUE(score(request).ok());  // what is not said is off
  EXPECT_THAT(response.scores(0).kept_mass(), ::testing::ElementsAre(1, 0));
  EXPECT_THAT(response.scores(0).ranks(), ::testing::ElementsAre(0, 0, 0, 24, 24, 24, 24));

  sequence->set_num_prompt_tokens(2);
  request.set_top_k(40);
  request.set_top_p(0.5f);
  request.set_min_p(0.25f);
  request.set_alone(true);
  request.mutable_precision()->set_body_bits(8);
  request.mutable_precision()->set_head_bits(9);
  request.mutable_precision()->set_kv_bits(10);
  request.mutable_precision()->set_rotary_bits(11);
  ASSERT_TRUE(score(request).ok());
  EXPECT_THAT(response.scores(0).kept_mass(), ::testing::ElementsAre(0.5f, 0.25f));
  EXPECT_THAT(response.scores(0).ranks(), ::testing::ElementsAre(40, 1, 2, 8, 9, 10, 11));

  const auto refused = [&](const auto& change, const std::string& message) {
    v1::ScoreRequest bad = request;
    change(bad);
    EXPECT_THAT(score(bad), GrpcFailsWith(grpc::StatusCode::INVALID_ARGUMENT, message));
  };
  refused([](auto& r) { r.mutable_sequences(0)->set_num_prompt_tokens(3); },
          "num_prompt_tokens of sequence 0 is 3, must be in [0, 2]");
  refused([](auto& r) { r.set_top_k(-1); }, "top_k is -1");
  refused([](auto& r) { r.set_top_p(1.5f); }, "top_p is 1.5");
  refused([](auto& r) { r.set_min_p(1); }, "min_p is 1");
  refused([](auto& r) { r.set_temperature(-1); }, "temperature is -1");
  refused([](auto& r) { r.mutable_precision()->set_kv_bits(1); },
          "precision.kv_bits is 1, want 2 to 24");
  refused([](auto& r) { r.mutable_precision()->set_rotary_bits(25); },
          "precision.rotary_bits is 25");
}

TEST_F(RolloutServerTest, InjectedFaultsAreInTheInfo) {
  EXPECT_EQ(Info().injected_size(), 0);
  server_.reset();
  gate_.Open();
  ServedModel model = ScriptedModel();
  model.options.faults = {.temperature = 0.9, .record = FaultRecord::kClaimed, .retokenise = true};
  auto server = RolloutServer::Create(options_, {std::make_unique<ScriptedEngine>(&gate_), model},
                                      &observation_);
  ASSERT_THAT(server, IsOk());
  rollout_ = v1::RolloutService::NewStub(
      grpc::CreateChannel((*server)->address(), grpc::InsecureChannelCredentials()));
  EXPECT_THAT(Info().injected(),
              ::testing::ElementsAre("temperature 0.9 (record claimed)", "retokenise"));
}

TEST_F(RolloutServerTest, DrainFinishesWhatRunsAndRefusesTheRest) {
  auto running = std::async(std::launch::async, [&] { return Generate(Request(1)); });
  WaitForInfo([](const auto& info) { return info.num_groups_queued() == 1; });
  server_->StartDrain();
  EXPECT_TRUE(Info().draining());
  EXPECT_THAT(Generate(Request(2)).status,
              GrpcFailsWith(grpc::StatusCode::UNAVAILABLE, "draining"));
  gate_.Open();
  server_->Drain();
  const Outcome outcome = running.get();
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.responses.size(), 3u);
}

TEST_F(RolloutServerTest, AnEngineFailureEndsTheCallsAndTheRun) {
  gate_.Open();
  v1::GenerateGroupRequest request = Request(1);
  request.set_prompt_token_ids(0, 667);
  EXPECT_THAT(Generate(request).status,
              GrpcFailsWith(grpc::StatusCode::INTERNAL, "the engine failed"));
  const StopSignal stop;
  EXPECT_THAT(server_->Run(stop), FailsWith(absl::StatusCode::kInternal, "scripted failure"));
}

TEST_F(RolloutServerTest, AGroupThatFailsIsToldToItsCallerCountedAndNobodyElsesMatter) {
  auto healthy = std::async(std::launch::async, [&] { return Generate(Request(1, 40)); });
  WaitForInfo([](const auto& info) { return info.num_groups_queued() == 1; });
  v1::GenerateGroupRequest request = Request(2, 40);
  request.set_prompt_token_ids(0, 668);
  auto hostile = std::async(std::launch::async, [&] { return Generate(request); });
  WaitForInfo(
      [](const auto& info) { return info.num_groups_queued() + info.num_groups_running() == 2; });
  gate_.Open();
  EXPECT_THAT(hostile.get().status,
              GrpcFailsWith(grpc::StatusCode::DATA_LOSS, "non_finite_logits"));
  EXPECT_TRUE(healthy.get().status.ok());
  EXPECT_TRUE(Generate(Request(3)).status.ok());
  // Counted with the step, which may still be on its way to the metrics.
  EXPECT_TRUE(tandem::testing::WaitUntil([&] {
    return observation_.metrics()->Render().find(
               "tandem_groups_failed_total{cause=\"non_finite_logits\"} 1") != std::string::npos;
  })) << observation_.metrics()->Render();
}

// A score that never ends, of slices that a gate lets through.
class ScoreCallTest : public testing::ServerTest {
 protected:
  ScoreCallTest() { score_gate_ = &slices_; }
  ~ScoreCallTest() override { slices_.Open(); }

  grpc::Status Score(int32_t first_id, std::chrono::milliseconds patience) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + patience);
    v1::ScoreRequest request;
    for (const int32_t id : {first_id, 6}) request.add_sequences()->add_token_ids(id);
    for (auto& sequence : *request.mutable_sequences()) sequence.add_token_ids(7);
    v1::ScoreResponse response;
    return rollout_->Score(&context, request, &response);
  }
  static constexpr int32_t kEndless = 999;

  testing::StepGate slices_;
};

TEST_F(ScoreCallTest, AScoreEndsWithItsCallersDeadline) {
  slices_.Open();
  // With as much patience as it takes for the score to begin.
  bool seen = false;
  for (std::chrono::milliseconds patience(250); !seen; patience *= 2) {
    auto call = std::async(std::launch::async, [&] { return Score(kEndless, patience); });
    while (!seen && call.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      seen = Info().kv_used_tokens() == 1;
    }
    EXPECT_THAT(call.get(), GrpcFailsWith(grpc::StatusCode::DEADLINE_EXCEEDED, ""));
  }
  WaitForInfo([](const auto& info) { return info.kv_used_tokens() == 0; });
  EXPECT_TRUE(Score(5, std::chrono::minutes(5)).ok());
}

TEST_F(ScoreCallTest, AServerThatStopsEndsAScoreThatRuns) {
  auto call =
      std::async(std::launch::async, [&] { return Score(kEndless, std::chrono::minutes(5)); });
  slices_.Allow(1);
  ASSERT_TRUE(tandem::testing::WaitUntil([&] { return slices_.allowed() == 0; })) << "it runs";
  slices_.Open();
  server_.reset();
  EXPECT_FALSE(call.get().ok());
}

TEST_F(RolloutServerTest, APortInUseIsAClearError) {
  ServerOptions options = options_;
  options.listen = server_->address();
  EXPECT_THAT(
      RolloutServer::Create(options, {std::make_unique<ScriptedEngine>(&gate_), ScriptedModel()},
                            &observation_),
      FailsWith(absl::StatusCode::kAlreadyExists, "the port is in use"));
}

TEST_F(RolloutServerTest, WritesThePortItPicked) {
  const tandem::testing::TempDir dir;
  options_.port_file = dir / "port";
  server_.reset();
  StartServer();
  std::ifstream file(options_.port_file);
  int port = 0;
  file >> port;
  EXPECT_EQ("127.0.0.1:" + std::to_string(port), server_->address());
}

TEST(ServerOptionsTest, AKvCacheOfLessThanABlockIsRefused) {
  ServerOptions options;
  options.model = "m";
  for (const int64_t tokens : {0, 16}) {
    options.engine.kv_capacity_tokens = tokens;
    EXPECT_THAT(CheckOptions(options), IsOk());
  }
  options.engine.kv_capacity_tokens = 15;
  EXPECT_THAT(CheckOptions(options),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        "server.engine.kv_capacity_tokens is 15, must be at least 16, or 0"));
}

TEST(ServerOptionsTest, PlaintextIsLoopbackOnlyUnlessItIsSaidOutLoud) {
  ServerOptions options;
  options.model = "m";
  for (const char* listen : {"127.0.0.1:1", "localhost:0", "[::1]:50051"}) {
    options.listen = listen;
    EXPECT_THAT(CheckOptions(options), IsOk()) << listen;
  }
  for (const char* listen : {"0.0.0.0:1", "[::]:1", "10.1.2.3:1"}) {
    options.listen = listen;
    EXPECT_THAT(CheckOptions(options), FailsWith(absl::StatusCode::kInvalidArgument,
                                                 "--insecure-plaintext-open-to-the-network"));
  }
  options.tls.directory = "certs/rollout";
  EXPECT_THAT(CheckOptions(options), IsOk());
  options.insecure_plaintext_open_to_the_network = true;
  EXPECT_THAT(CheckOptions(options), FailsWith(absl::StatusCode::kInvalidArgument, "choose one"));
  options.tls.directory.clear();
  EXPECT_THAT(CheckOptions(options), IsOk());
  options.tls.token_file = "token";
  EXPECT_THAT(CheckOptions(options), FailsWith(absl::StatusCode::kInvalidArgument,
                                               "server.token_file without server.tls"));
  options.tls.token_file.clear();
  for (const char* listen : {"127.0.0.1", "unix:/tmp/x", "unix:1", "unix-abstract:1"}) {
    options.listen = listen;
    EXPECT_THAT(CheckOptions(options), FailsWith(absl::StatusCode::kInvalidArgument, "HOST:PORT"))
        << listen;
  }
  options.model.clear();
  EXPECT_THAT(CheckOptions(options),
              FailsWith(absl::StatusCode::kInvalidArgument, "model is empty"));
}

}  // namespace
}  // namespace tandem::rollout
