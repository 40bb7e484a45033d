// The weight push through real gRPC: every failure leaves the live version serving, and the next
// push succeeds.
#include <future>

#include "absl/strings/str_cat.h"
#include "common/process/stop_signal.h"
#include "tests/rollout_server/push_fixture.h"
#include "tests/rollout_server/silent_listener.h"

namespace tandem::rollout {
namespace {

using testing::GrpcFailsWith;
namespace wire = ::tandem::weights::v1;

using testing::Digest;
using WeightServiceTest = testing::PushTest;

TEST_F(WeightServiceTest, ReportsTheDigestsOfWhatWasLoaded) {
  const wire::GetWeightInfoResponse info = WeightInfo();
  EXPECT_EQ(info.live_version(), 0);
  EXPECT_EQ(info.live_digests(0).xxh3_128(), Digest(std::string(8, '\0')));
  EXPECT_EQ(info.tensors(1).dtype(), "BF16");
  EXPECT_EQ(info.tensors(1).shape(0), 3);
}

TEST_F(WeightServiceTest, APushGoesLiveWithTheDigestsThatWerePublished) { ExpectPushWorks(1); }

TEST_F(WeightServiceTest, AFlippedByteIsDataLossNamingTheTensorAndTheNextPushWorks) {
  ASSERT_TRUE(Begin(1).ok());
  ASSERT_TRUE(Push({Chunk(1, 0, 0, "AAAAAAAA"), Chunk(1, 1, 0, "BBBbBB")}).ok());
  EXPECT_THAT(Commit(1, "AAAAAAAA", "BBBBBB").first,
              GrpcFailsWith(grpc::StatusCode::DATA_LOSS, "digest of b"));
  EXPECT_EQ(WeightInfo().live_version(), 0);
  ExpectPushWorks(1);
}

// Each of the two would wait for the other members longer than anybody waits for a test that hangs.
TEST_F(WeightServiceTest, ADrainDoesNotWaitForPushGroupsThatForm) {
  testing::SilentListener trainer;
  wire::JoinPushGroupRequest request;
  request.set_run_id("run");
  request.set_epoch(1);
  request.set_membership(1);
  request.set_store_host("127.0.0.1");
  request.set_store_port(trainer.port());
  request.set_rank(1);
  for (const char* member : {"trainer", "server"}) request.add_members(member);
  request.set_deadline_ms(30 * 60 * 1000);
  const auto join = [&] {
    return Call<wire::JoinPushGroupRequest, wire::JoinPushGroupResponse>(
               &wire::WeightService::Stub::JoinPushGroup, request)
        .first;
  };
  std::vector<std::future<grpc::Status>> calls;
  for (int i = 0; i < 2; ++i) calls.push_back(std::async(std::launch::async, join));
  trainer.WaitForSomebody();
  server_->Drain();
  for (auto& call : calls) EXPECT_FALSE(call.get().ok());
}

TEST_F(WeightServiceTest, AMissingTensorIsRefusedByName) {
  EXPECT_THAT(Begin(1, /*with_b=*/false),
              GrpcFailsWith(grpc::StatusCode::INVALID_ARGUMENT, "missing tensor 'b'"));
  ExpectPushWorks(1);
}

TEST_F(WeightServiceTest, AMissingChunkIsDataLossAndTheNextPushWorks) {
  ASSERT_TRUE(Begin(1).ok());
  ASSERT_TRUE(Push({Chunk(1, 0, 0, "AAAAAAAA"), Chunk(1, 1, 2, "BBBB")}).ok());
  EXPECT_THAT(Commit(1, "AAAAAAAA", "BBBBBB").first,
              GrpcFailsWith(grpc::StatusCode::DATA_LOSS, "2 of 6 bytes of b did not arrive"));
  ExpectPushWorks(1);
}

TEST_F(WeightServiceTest, DoubledAndReorderedChunksAndADoubledCommitAreHarmless) {
  ASSERT_TRUE(Begin(1).ok());
  ASSERT_TRUE(Push({Chunk(1, 1, 3, "BBB"), Chunk(1, 0, 4, "AAAA"), Chunk(1, 1, 0, "BBB"),
                    Chunk(1, 0, 4, "AAAA"), Chunk(1, 0, 0, "AAAA")})
                  .ok());
  EXPECT_TRUE(Commit(1, "AAAAAAAA", "BBBBBB").first.ok());
  const auto [status, response] = Commit(1, "AAAAAAAA", "BBBBBB");
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.live_version(), 1);
}

TEST_F(WeightServiceTest, ATrainerThatDiesInMidPushLeavesTheLiveVersionAndTheNextPushWorks) {
  ASSERT_TRUE(Begin(1).ok());
  {
    grpc::ClientContext context;
    wire::PushChunksResponse response;
    auto writer = weights_->PushChunks(&context, &response);
    ASSERT_TRUE(writer->Write(Chunk(1, 0, 0, "AAAA")));
    context.TryCancel();
    EXPECT_FALSE(writer->Finish().ok());
  }
  EXPECT_EQ(WeightInfo().live_version(), 0);
  ASSERT_TRUE(Claim("run", 1).ok());
  ExpectPushWorks(1);
}

TEST_F(WeightServiceTest, AnAbortedPushIsGoneAndCanBePushedAgain) {
  ASSERT_TRUE(Begin(1).ok());
  EXPECT_EQ(WeightInfo().staged_version(), 1);
  wire::AbortUpdateRequest request;
  request.set_run_id("run");
  request.set_version(1);
  const auto [status, response] = Call<wire::AbortUpdateRequest, wire::AbortUpdateResponse>(
      &wire::WeightService::Stub::AbortUpdate, request);
  EXPECT_TRUE(status.ok());
  EXPECT_TRUE(response.aborted());
  EXPECT_THAT(Push({Chunk(1, 0, 0, "AAAA")}),
              GrpcFailsWith(grpc::StatusCode::FAILED_PRECONDITION, "no update of version 1"));
  ExpectPushWorks(1);
}

TEST_F(WeightServiceTest, AVersionThatDoesNotRiseIsRefused) {
  ExpectPushWorks(4);
  EXPECT_THAT(Begin(4), GrpcFailsWith(grpc::StatusCode::FAILED_PRECONDITION, "not newer"));
  EXPECT_THAT(Begin(3), GrpcFailsWith(grpc::StatusCode::FAILED_PRECONDITION, "not newer"));
  ExpectPushWorks(5);
}

TEST_F(WeightServiceTest, OnlyTheOwnerPushesAndOnlyUnderItsEpoch) {
  EXPECT_THAT(Begin(1, true, 1, "other"),
              GrpcFailsWith(grpc::StatusCode::FAILED_PRECONDITION, "run 'run' owns this server"));
  EXPECT_THAT(Begin(1, true, 2), GrpcFailsWith(grpc::StatusCode::FAILED_PRECONDITION,
                                               "epoch 2 is not the live epoch 1"));
  EXPECT_THAT(Claim("other", 1),
              GrpcFailsWith(grpc::StatusCode::FAILED_PRECONDITION, "run 'run' owns this server"));
  EXPECT_TRUE(Claim("run", 1, /*release=*/true).ok());
  EXPECT_TRUE(Claim("other", 1).ok());
}

TEST_F(WeightServiceTest, ACommitInMidGenerationLabelsEachTokenWithItsVersion) {
  auto call = std::async(std::launch::async, [&] { return Generate(Request(1, 900)); });
  gate_.Allow(2);
  WaitForInfo([](const auto& info) { return info.num_tokens_sampled() == 4; });
  ASSERT_TRUE(Begin(1).ok());
  ASSERT_TRUE(Push({Chunk(1, 0, 0, "AAAAAAAA"), Chunk(1, 1, 0, "BBBBBB")}).ok());
  auto commit = std::async(std::launch::async, [&] { return Commit(1, "AAAAAAAA", "BBBBBB"); });
  // The engine waits inside its third step; the commit lands between two of the steps that follow.
  WaitForInfo([&](const auto&) { return WeightInfo().staged_version() == 0; });
  WaitForInfo([&](const auto& info) {
    gate_.Allow(1);
    return info.live_weight_version() == 1;
  });
  EXPECT_TRUE(commit.get().first.ok());
  gate_.Open();
  const Outcome outcome = call.get();
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  const v1::Completion& completion = outcome.responses[0].completion();
  ASSERT_EQ(completion.version_spans_size(), 2);
  EXPECT_EQ(completion.version_spans(0).weight_version(), 0);
  EXPECT_GE(completion.version_spans(0).num_tokens(), 3);
  EXPECT_EQ(completion.version_spans(1).weight_version(), 1);
  EXPECT_EQ(completion.version_spans(0).num_tokens() + completion.version_spans(1).num_tokens(),
            900);
}

// A group of two completions in its third step, and a push whose commit waits for it.
class InFlightTest : public WeightServiceTest {
 protected:
  void SetUp() override {}

  void CommitDuringAGroup(InFlight policy, int32_t max_new_tokens) {
    in_flight_ = policy;
    StartServer();
    ASSERT_TRUE(Claim("run", 1).ok());
    call_ = std::async(std::launch::async,
                       [this, max_new_tokens] { return Generate(Request(1, max_new_tokens)); });
    gate_.Allow(2);
    WaitForInfo([](const auto& info) { return info.num_tokens_sampled() == 4; });
    ASSERT_TRUE(Begin(1).ok());
    ASSERT_TRUE(Push({Chunk(1, 0, 0, "AAAAAAAA"), Chunk(1, 1, 0, "BBBBBB")}).ok());
    commit_ = std::async(std::launch::async, [this] { return Commit(1, "AAAAAAAA", "BBBBBB"); });
    WaitForInfo([&](const auto&) { return WeightInfo().staged_version() == 0; });
  }

  std::future<Outcome> call_;
  std::future<std::pair<grpc::Status, wire::CommitUpdateResponse>> commit_;
};

TEST_F(InFlightTest, AbortEndsWhatRunsAndSaysWhy) {
  ASSERT_NO_FATAL_FAILURE(CommitDuringAGroup(InFlight::kAbort, 900));
  WaitForInfo([&](const auto& info) {
    gate_.Allow(1);
    return info.live_weight_version() == 1;
  });
  EXPECT_TRUE(commit_.get().first.ok());
  const Outcome outcome = call_.get();
  EXPECT_THAT(outcome.status, GrpcFailsWith(grpc::StatusCode::ABORTED, "new weights came"));
  EXPECT_TRUE(outcome.responses.empty());
}

TEST_F(InFlightTest, DrainInstallsWhenTheRunningGroupsHaveEndedAndLetsNobodyInBefore) {
  ASSERT_NO_FATAL_FAILURE(CommitDuringAGroup(InFlight::kDrain, 40));
  auto late = std::async(std::launch::async, [&] { return Generate(Request(2, 3)); });
  WaitForInfo([](const auto& info) { return info.num_groups_queued() == 1; });
  gate_.Open();
  EXPECT_TRUE(commit_.get().first.ok());
  const Outcome running = call_.get(), after = late.get();
  ASSERT_TRUE(running.status.ok() && after.status.ok());
  const auto& spans = running.responses[0].completion().version_spans();
  ASSERT_EQ(spans.size(), 1);
  EXPECT_EQ(spans[0].weight_version(), 0);
  EXPECT_EQ(spans[0].num_tokens(), 40);
  const auto& after_spans = after.responses[0].completion().version_spans();
  ASSERT_EQ(after_spans.size(), 1);
  EXPECT_EQ(after_spans[0].weight_version(), 1);
}

TEST_F(WeightServiceTest, PauseHoldsTheStepsUntilResumeAndEndsWithTheOwnership) {
  const auto pause = [&] {
    wire::PauseRequest request;
    request.set_run_id("run");
    return Call<wire::PauseRequest, wire::PauseResponse>(&wire::WeightService::Stub::Pause, request)
        .first;
  };
  EXPECT_TRUE(pause().ok());
  EXPECT_TRUE(pause().ok());
  EXPECT_TRUE(Info().paused());
  wire::ResumeRequest request;
  request.set_run_id("run");
  EXPECT_TRUE(
      (Call<wire::ResumeRequest, wire::ResumeResponse>(&wire::WeightService::Stub::Resume, request)
           .first.ok()));
  EXPECT_FALSE(Info().paused());
  EXPECT_TRUE(pause().ok());
  EXPECT_TRUE(Claim("run", 1, /*release=*/true).ok());
  WaitForInfo([](const auto& info) { return !info.paused(); });
}

TEST_F(WeightServiceTest, APauseEndsWithTheLeaseOfARunThatDied) {
  gate_.Open();
  wire::PauseRequest request;
  request.set_run_id("run");
  ASSERT_TRUE(
      (Call<wire::PauseRequest, wire::PauseResponse>(&wire::WeightService::Stub::Pause, request)
           .first.ok()));
  StopSignal stop;
  auto run = std::async(std::launch::async, [&] { return server_->Run(stop); });
  EXPECT_TRUE(Info().paused()) << "the lease of 60 s holds";
  clock_skew_ = 61;
  EXPECT_TRUE(Generate(Request(1, 2, /*run_id=*/"")).status.ok()) << "without ownership";
  EXPECT_FALSE(Info().paused());
  stop.Request();
  EXPECT_TRUE(run.get().ok());
}

TEST_F(WeightServiceTest, EveryRefusedWeightCallIsCounted) {
  const auto count = [&](const char* reason) {
    const std::string page = observation_.metrics()->Render();
    const std::string line = absl::StrCat("tandem_rejections_total{reason=\"", reason, "\"} ");
    const size_t at = page.find(line);
    return at == std::string::npos ? 0 : std::stoi(page.substr(at + line.size()));
  };
  wire::PauseRequest pause;
  wire::ResumeRequest resume;
  for (auto* run_id : {pause.mutable_run_id(), resume.mutable_run_id()}) *run_id = "intruder";
  EXPECT_THAT(
      (Call<wire::PauseRequest, wire::PauseResponse>(&wire::WeightService::Stub::Pause, pause)
           .first),
      GrpcFailsWith(grpc::StatusCode::FAILED_PRECONDITION, "owns this server"));
  EXPECT_EQ(count("FAILED_PRECONDITION"), 1);
  EXPECT_THAT(
      (Call<wire::ResumeRequest, wire::ResumeResponse>(&wire::WeightService::Stub::Resume, resume)
           .first),
      GrpcFailsWith(grpc::StatusCode::FAILED_PRECONDITION, "owns this server"));
  EXPECT_EQ(count("FAILED_PRECONDITION"), 2);
  EXPECT_FALSE(Push({Chunk(7, 0, 0, "AAAA")}).ok()) << "of no push that was begun";
  EXPECT_EQ(count("FAILED_PRECONDITION"), 3);
}

TEST_F(WeightServiceTest, AStoreThatIsNoHostIsRefusedBeforeAnybodyLooksForIt) {
  for (const char* host : {"\x1b[2Jhost", "host\nline", "two hosts", "\xc2\x9bhost"}) {
    wire::JoinPushGroupRequest request;
    request.set_run_id("run");
    request.set_epoch(1);
    request.set_membership(1);
    request.set_store_host(host);
    request.set_store_port(1);
    request.set_rank(1);
    for (const char* member : {"a", "b"}) request.add_members(member);
    request.set_deadline_ms(1000);
    EXPECT_THAT((Call<wire::JoinPushGroupRequest, wire::JoinPushGroupResponse>(
                     &wire::WeightService::Stub::JoinPushGroup, request)
                     .first),
                testing::GrpcFailsWith(grpc::StatusCode::INVALID_ARGUMENT,
                                       "store_host is neither a host name nor an address"))
        << host;
  }
}

}  // namespace
}  // namespace tandem::rollout
