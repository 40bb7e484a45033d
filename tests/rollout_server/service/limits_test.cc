// The caps of a rollout server (docs/security.md#caps), each exceeded by a caller.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>

#include <deque>
#include <future>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/rpc/refusal.h"
#include "rollout_server/engine/schedule/group.h"
#include "rollout_server/groups/ownership.h"
#include "rollout_server/groups/worker_thread.h"
#include "rollout_server/service/call_context.h"
#include "rollout_server/service/rollout_messages.h"
#include "tests/rollout_server/server_fixture.h"
#include "tests/support/health_call.h"
#include "tests/support/wait_until.h"

namespace tandem::rollout {
namespace {

using ::tandem::testing::EmptyMessage;
using ::tandem::testing::WaitUntil;
using testing::GrpcFailsWith;

constexpr auto kInvalid = grpc::StatusCode::INVALID_ARGUMENT;

class LimitsTest : public testing::ServerTest {
 protected:
  LimitsTest() { options_.max_message_bytes = 4 << 20; }

  // An entry of the trailing metadata; empty: not there.
  static std::string TrailingOf(const grpc::ClientContext& context, const char* key) {
    const auto& trailer = context.GetServerTrailingMetadata();
    const auto found = trailer.find(key);
    return found == trailer.end() ? "" : std::string(found->second.data(), found->second.size());
  }

  v1::ScoreRequest ScoreRequestOf(int num_sequences, int num_ids) {
    v1::ScoreRequest request;
    request.set_path(v1::SCORE_PATH_PREFILL);
    for (int s = 0; s < num_sequences; ++s) {
      auto* const ids = request.add_sequences()->mutable_token_ids();
      for (int i = 0; i < num_ids; ++i) ids->Add(5);
    }
    return request;
  }
};

TEST_F(LimitsTest, AMessageOverTheLimitIsRefusedAndTheServerLives) {
  v1::GenerateGroupRequest request = Request(1);
  request.mutable_sampling()->add_stop_strings(std::string(4 << 20, 'x'));
  EXPECT_THAT(Generate(request).status,
              GrpcFailsWith(grpc::StatusCode::RESOURCE_EXHAUSTED, "larger than max"));
  EXPECT_EQ(Info().num_groups_queued(), 0);
}

TEST_F(LimitsTest, MetadataOver16KiBIsRefusedAndTheServerLives) {
  grpc::ClientContext context;
  SetDeadline(&context);
  context.AddMetadata("x-padding", std::string(17 << 10, 'x'));
  v1::GetInfoResponse info;
  EXPECT_THAT(rollout_->GetInfo(&context, {}, &info),
              GrpcFailsWith(grpc::StatusCode::RESOURCE_EXHAUSTED, "metadata"));
  // The connection may have gone with the call.
  EXPECT_TRUE(WaitUntil([&] {
    grpc::ClientContext again;
    SetDeadline(&again);
    return rollout_->GetInfo(&again, {}, &info).ok();
  }));
}

TEST_F(LimitsTest, ADeadlineOverTheMaximumAndACallWithoutOneAreRefusedByName) {
  const auto refused = [&](auto set_deadline) {
    grpc::ClientContext context;
    set_deadline(&context);
    auto reader = rollout_->GenerateGroup(&context, Request(1));
    v1::GenerateGroupResponse response;
    EXPECT_FALSE(reader->Read(&response));
    const grpc::Status status = reader->Finish();
    const auto name = context.GetServerTrailingMetadata().find(rpc::kRefusalKey);
    EXPECT_EQ(name == context.GetServerTrailingMetadata().end() ? "" : name->second,
              "DEADLINE_TOO_FAR");
    return status;
  };
  EXPECT_THAT(refused([](grpc::ClientContext* context) {
                context->set_deadline(std::chrono::system_clock::now() + std::chrono::hours(25));
              }),
              GrpcFailsWith(kInvalid, "at most 86400 s (server.max_deadline_seconds)"));
  EXPECT_THAT(refused([](grpc::ClientContext*) {}),
              GrpcFailsWith(kInvalid, "the call has no deadline"));
  EXPECT_EQ(Info().max_deadline_ms(), 86'400'000);
}

TEST_F(LimitsTest, ADeadlineOfTheMaximumIsTakenAsGrpcRoundsItUp) {
  gate_.Open();
  // On the wire: 1240 s and 12400 s.
  for (const auto& [most, asked] : {std::pair(1234, 1234), std::pair(12345, 12340)}) {
    options_.max_deadline_seconds = most;
    server_.reset();
    StartServer();
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(asked));
    auto reader = rollout_->GenerateGroup(&context, Request(1));
    v1::GenerateGroupResponse response;
    while (reader->Read(&response)) {
    }
    const grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
}

TEST_F(LimitsTest, ACallThatItsDeadlineEndsIsCountedApartFromACancelledOne) {
  const auto counted = [&](const char* outcome) {
    const std::string line = absl::StrCat("tandem_requests_total{outcome=\"", outcome, "\"} ");
    const std::string page = observation_.metrics()->Render();
    return page.find(line) != std::string::npos && page.find(line + "0\n") == std::string::npos;
  };
  grpc::ClientContext cancelled;
  SetDeadline(&cancelled);
  auto reader = rollout_->GenerateGroup(&cancelled, Request(1, 500));
  WaitForInfo([](const auto& info) { return info.num_groups_queued() == 1; });
  cancelled.TryCancel();
  EXPECT_TRUE(WaitUntil([&] { return counted("cancelled"); }));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_FALSE(counted("deadline_exceeded"));

  // With as much patience as it takes for the time that the call travels to be little of it.
  for (std::chrono::milliseconds patience(250); !counted("deadline_exceeded"); patience *= 2) {
    ASSERT_LT(patience, std::chrono::minutes(5));
    grpc::ClientContext late;
    late.set_deadline(std::chrono::system_clock::now() + patience);
    auto waiting = rollout_->GenerateGroup(&late, Request(2, 500));
    EXPECT_EQ(waiting->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
    WaitForInfo([](const auto& info) { return info.num_groups_queued() == 0; });
  }
}

TEST(CallDeadlineTest, ACallIsEndedByItsDeadlineWithinTheRoundingAndTheTimeItTravels) {
  EXPECT_EQ(CalledOff(1000, 10), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(CalledOff(1000, 11), absl::StatusCode::kCancelled);
  EXPECT_EQ(CalledOff(0.5, -0.01), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(CalledOff(0.5, 0.1), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(CalledOff(0.5, 0.2), absl::StatusCode::kCancelled);
  const double none = std::numeric_limits<double>::infinity();
  EXPECT_EQ(CalledOff(none, none), absl::StatusCode::kCancelled);
}

FinishedCompletion WithSupports(int num_tokens, int32_t num_ids, int32_t step) {
  FinishedCompletion completion;
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < num_ids; ++i) ids.push_back(i * step);
  completion.token_ids.assign(static_cast<size_t>(num_tokens), 0);
  completion.support.assign(static_cast<size_t>(num_tokens), PackedSupport(ids));
  return completion;
}

TEST_F(LimitsTest, SupportsTravelPackedToCallersThatAskAndAsIdsToOthers) {
  const FinishedCompletion completion = WithSupports(2, 3, 2);  // {0, 2, 4}
  v1::Completion as_ids, packed;
  CompletionToWire(completion, {.return_support = true}, &as_ids);
  CompletionToWire(completion, {.return_support = true, .packed_support = true}, &packed);
  ASSERT_EQ(as_ids.support_size(), 2);
  EXPECT_THAT(as_ids.support(1).ids(), ::testing::ElementsAre(0, 2, 4));
  EXPECT_EQ(as_ids.support(1).packed(), "");
  EXPECT_TRUE(packed.support(1).ids().empty());
  std::vector<int32_t> ids;
  ASSERT_TRUE(UnpackSupport(packed.support(1).packed(), 5, &ids).ok());
  EXPECT_THAT(ids, ::testing::ElementsAre(0, 2, 4));
}

TEST_F(LimitsTest, ACompletionThatFitsNoMessageIsTooLargeByName) {
  // Every other of 151 936 ids: 18 992 bytes a token packed, 227 904 as ids.
  const FinishedCompletion small = WithSupports(100, 75968, 2), large = WithSupports(300, 75968, 2);
  const FinishedCompletion huge = WithSupports(3600, 75968, 2);
  const SamplingParams ids = {.return_support = true};
  const SamplingParams packed = {.return_support = true, .packed_support = true};
  EXPECT_TRUE(CheckMessage(small, ids).ok());
  EXPECT_TRUE(CheckMessage(large, packed).ok());
  for (const absl::Status& status : {CheckMessage(large, ids), CheckMessage(huge, packed)}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(rpc::RefusalOf(status), rpc::Refusal::kTooLarge);
  }
  EXPECT_NE(CheckMessage(large, ids).message().find("ask for sampling.packed_support"),
            std::string::npos);
}

TEST_F(LimitsTest, WhatCouldNeverBeSentIsRefusedBeforeItIsDrawn) {
  v1::GenerateGroupRequest request = Request(1);
  request.mutable_sampling()->set_max_new_tokens(200'000);
  request.mutable_sampling()->set_top_logprobs(64);
  const Outcome refused = Generate(request);
  EXPECT_THAT(refused.status, GrpcFailsWith(kInvalid, "sampling.top_logprobs = 64 takes up to"));
  EXPECT_EQ(refused.refusal, "TOO_LARGE");
}

TEST_F(LimitsTest, ARunIdOver256BytesIsRefused) {
  const std::string longest(kMaxRunIdBytes, 'r');
  EXPECT_THAT(Generate(Request(1, 2, longest + "r")).status,
              GrpcFailsWith(kInvalid, "run_id has 257 bytes"));
  EXPECT_THAT(Claim(longest + "r", 1), GrpcFailsWith(kInvalid, "run_id has 257 bytes"));
  EXPECT_TRUE(Claim(longest, 1).ok());
}

TEST_F(LimitsTest, ARunIdThatWouldActOnATerminalIsRefusedByEveryCall) {
  for (const char* run_id : {"\x1b[31mrun", "run\n",
                             "\xc2\x9b"
                             "31mrun",
                             "\xe2\x80\xaerun", "\xe2\x80\xa8run"}) {
    EXPECT_THAT(Generate(Request(1, 2, run_id)).status,
                GrpcFailsWith(kInvalid, "run_id has control characters"));
    EXPECT_THAT(Claim(run_id, 1), GrpcFailsWith(kInvalid, "run_id has control characters"));
  }
  gate_.Open();
  EXPECT_TRUE(Generate(Request(1, 2, "Lauf \xc3\x9f")).status.ok());
}

TEST_F(LimitsTest, StopConditionsAreBoundedInNumberAndLength) {
  const auto status_of = [&](auto change) {
    v1::GenerateGroupRequest request = Request(1);
    change(request.mutable_sampling());
    return Generate(request).status;
  };
  EXPECT_THAT(status_of([](auto* s) {
                for (size_t i = 0; i <= kMaxStopStrings; ++i) s->add_stop_strings("x");
              }),
              GrpcFailsWith(kInvalid, "stop_strings is 17, want at most 16"));
  EXPECT_THAT(status_of([](auto* s) {
                s->add_stop_strings("x");
                s->add_stop_strings(std::string(kMaxStopStringBytes + 1, 'x'));
              }),
              GrpcFailsWith(kInvalid, "stop_strings[1] has 1025 bytes, want 1 to 1024"));
  EXPECT_THAT(status_of([](auto* s) { s->add_stop_strings(""); }),
              GrpcFailsWith(kInvalid, "stop_strings[0] has 0 bytes, want 1 to 1024"));
  EXPECT_THAT(status_of([](auto* s) { s->set_top_k(std::numeric_limits<int32_t>::min()); }),
              GrpcFailsWith(kInvalid, "top_k is -2147483648, want >= 0"));
  EXPECT_THAT(status_of([](auto* s) {
                for (size_t i = 0; i <= kMaxStopTokenIds; ++i) s->add_stop_token_ids(1);
              }),
              GrpcFailsWith(kInvalid, "stop_token_ids is 262145, want at most 262144"));
  EXPECT_THAT(status_of([](auto* s) { s->set_top_logprobs(kMaxTopLogprobs + 1); }),
              GrpcFailsWith(kInvalid, "top_logprobs is 129, want in [0, 128]"));
}

TEST_F(LimitsTest, AScoreOver65536IdsIsRefused) {
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::ScoreResponse response;
  EXPECT_THAT(rollout_->Score(&context, ScoreRequestOf(kMaxScoreTokens / 512 + 1, 512), &response),
              GrpcFailsWith(kInvalid, "more than 65536 ids in one call"));
  EXPECT_EQ(TrailingOf(context, rpc::kRefusalKey), "TOO_LARGE");
}

TEST_F(LimitsTest, AScoreWithoutADeadlineIsRefusedByName) {
  grpc::ClientContext context;
  v1::ScoreResponse response;
  EXPECT_THAT(rollout_->Score(&context, ScoreRequestOf(1, 2), &response),
              GrpcFailsWith(kInvalid, "the call has no deadline"));
  EXPECT_EQ(TrailingOf(context, rpc::kRefusalKey), "DEADLINE_TOO_FAR");
  EXPECT_EQ(TrailingOf(context, rpc::kRetryAfterKey), "") << "it would be refused again";
}

TEST_F(LimitsTest, ScoresBeyond64ThatWaitAreRefused) {
  ASSERT_TRUE(Claim("run", 1).ok());
  // The engine is in a step that does not end: what comes now waits.
  auto running = std::async(std::launch::async, [&] { return Generate(Request(1, 500)); });
  gate_.Allow(3);
  WaitForInfo([](const auto& info) { return info.num_groups_running() == 1; });
  struct Call {
    grpc::ClientContext context;
    v1::ScoreRequest request;
    v1::ScoreResponse response;
    std::promise<grpc::Status> ended;
  };
  std::deque<Call> calls;
  std::promise<Call*> first_refusal;
  std::atomic<bool> refused{false};
  for (int i = 0; i < 70; ++i) {  // a few may have been taken before the step began
    Call& call = calls.emplace_back();
    SetDeadline(&call.context);
    call.request = ScoreRequestOf(1, 2);
    call.request.set_run_id("run");
    rollout_->async()->Score(&call.context, &call.request, &call.response,
                             [&](grpc::Status status) {
                               call.ended.set_value(status);
                               if (!status.ok() && !refused.exchange(true))
                                 first_refusal.set_value(&call);
                             });
  }
  Call* const first = first_refusal.get_future().get();
  gate_.Open();
  int num_ok = 0;
  for (Call& call : calls) {
    const grpc::Status status = call.ended.get_future().get();
    num_ok += status.ok() ? 1 : 0;
    if (&call != first) continue;
    EXPECT_THAT(status, GrpcFailsWith(grpc::StatusCode::RESOURCE_EXHAUSTED,
                                      "too many Score calls are waiting (limit 64)"));
  }
  EXPECT_EQ(TrailingOf(first->context, rpc::kRefusalKey), "QUEUE_FULL");
  EXPECT_NE(TrailingOf(first->context, rpc::kRetryAfterKey), "");
  EXPECT_GE(num_ok, 64);
  EXPECT_TRUE(running.get().status.ok());
}

TEST_F(LimitsTest, BucketsOverAGibibyteAreRefused) {
  ASSERT_TRUE(Claim("run", 1).ok());
  grpc::ClientContext context;
  SetDeadline(&context);
  weights::v1::ReceiveBucketsRequest request;
  request.set_run_id("run");
  request.set_epoch(1);
  request.set_bucket_bytes((int64_t{1} << 30) + 1);
  weights::v1::ReceiveBucketsResponse response;
  EXPECT_THAT(weights_->ReceiveBuckets(&context, request, &response),
              GrpcFailsWith(kInvalid, "buckets of 1073741825 bytes"));
}

// A call of Health/Watch, which answers at once and goes on.
class Watch : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Watch(grpc::GenericStub& stub, std::atomic<int>* num_answered) : num_answered_(num_answered) {
    stub.PrepareBidiStreamingCall(&context_, "/grpc.health.v1.Health/Watch", {}, this);
    StartWriteLast(&request_, {});
    StartRead(&answer_);
    StartCall();
  }
  void OnReadDone(bool good) override { *num_answered_ += good ? 1 : 0; }
  void OnDone(const grpc::Status&) override { done_.set_value(); }
  void Cancel() { context_.TryCancel(); }
  void WaitForEnd() { done_.get_future().wait(); }

 private:
  std::atomic<int>* const num_answered_;
  grpc::ClientContext context_;
  const grpc::ByteBuffer request_ = EmptyMessage();
  grpc::ByteBuffer answer_;
  std::promise<void> done_;
};

TEST_F(LimitsTest, TheStreamOverTheLimitOfAConnectionWaitsForAnotherToEnd) {
  constexpr int kStreams = 4096;
  grpc::GenericStub stub(channel_);
  std::atomic<int> num_answered{0};
  std::deque<Watch> watches;
  for (int i = 0; i < kStreams; ++i) watches.emplace_back(stub, &num_answered);
  EXPECT_TRUE(WaitUntil([&] { return num_answered == kStreams; }, 60));
  watches.emplace_back(stub, &num_answered);
  EXPECT_FALSE(WaitUntil([&] { return num_answered > kStreams; }, 0.5));
  watches.front().Cancel();
  EXPECT_TRUE(WaitUntil([&] { return num_answered == kStreams + 1; }, 60));
  for (Watch& watch : watches) watch.Cancel();
  for (Watch& watch : watches) watch.WaitForEnd();
}

TEST(WorkerThreadTest, TakesSixteenTasksThatWait) {
  std::promise<void> started, release;
  std::shared_future<void> released = release.get_future().share();
  int num_run = 0;
  {
    WorkerThread worker;
    ASSERT_TRUE(worker.Run([&] {
      started.set_value();
      released.wait();
    }));
    started.get_future().wait();
    for (size_t i = 0; i < WorkerThread::kMaxWaiting; ++i)
      EXPECT_TRUE(worker.Run([&] { ++num_run; }));
    EXPECT_FALSE(worker.Run([&] { num_run += 100; }));
    release.set_value();
  }
  EXPECT_EQ(num_run, 16);
}

class ConnectionAgeTest : public testing::ServerTest {
 protected:
  ConnectionAgeTest() { options_.max_connection_age_seconds = 1; }

  // A call that goes out just as the server ends the connection is refused by gRPC itself, with
  // UNAVAILABLE and "GOAWAY received", before the server has seen it. Every caller asks again.
  template <typename Call>
  static grpc::Status AskUntilSeen(const Call& call) {
    grpc::Status status = call();
    for (int i = 0; i < 100 && status.error_message() == "GOAWAY received"; ++i) status = call();
    return status;
  }

  static std::chrono::system_clock::time_point Deadline() {
    return std::chrono::system_clock::now() + std::chrono::seconds(120);
  }
};

TEST_F(ConnectionAgeTest, AConnectionAtItsEndIsReplacedAndLosesNoCall) {
  gate_.Open();
  std::atomic<bool> enough{false};
  auto calls = std::async(std::launch::async, [&] {  // one after the other, at every moment
    for (int64_t id = 0; !enough; ++id) {
      const auto status = AskUntilSeen([&] { return Generate(Request(id)).status; });
      if (!status.ok()) return status;
    }
    return grpc::Status::OK;
  });
  // The channel tells of each change, however short: who only looks now and then may miss them all.
  const auto deadline = Deadline();
  for (int num_replaced = 0; num_replaced < 3; ++num_replaced) {
    EXPECT_TRUE(channel_->WaitForConnected(deadline));
    EXPECT_TRUE(channel_->WaitForStateChange(GRPC_CHANNEL_READY, deadline))
        << "the connection stays";
  }
  enough = true;
  const grpc::Status status = calls.get();
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(ConnectionAgeTest, ACallUnderWayOutlivesItsConnectionsAge) {
  auto running = std::async(std::launch::async, [&] {
    return AskUntilSeen([&] { return Generate(Request(1, 500)).status; });
  });
  gate_.Allow(3);
  EXPECT_TRUE(WaitUntil(
      [&] {
        v1::GetInfoResponse info;
        const auto status = AskUntilSeen([&] {
          grpc::ClientContext context;
          SetDeadline(&context);
          return rollout_->GetInfo(&context, {}, &info);
        });
        return status.ok() && info.num_groups_running() == 1;
      },
      120));
  EXPECT_TRUE(channel_->WaitForStateChange(GRPC_CHANNEL_READY, Deadline()))
      << "the connection stays";
  gate_.Open();
  EXPECT_TRUE(running.get().ok());
}

}  // namespace
}  // namespace tandem::rollout
