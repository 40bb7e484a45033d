// What a rollout server answers to probes, through its own HTTP port and real gRPC calls.
#include <gmock/gmock.h>

#include <future>

#include "rollout_server/service/readiness.h"
#include "tests/rollout_server/push_fixture.h"
#include "tests/support/http_get.h"
#include "tests/support/wait_until.h"

namespace tandem::rollout {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

class HealthTest : public testing::PushTest {
 protected:
  void SetUp() override {
    ASSERT_THAT(observation_.Serve("127.0.0.1:0"), tandem::testing::IsOk());
    ServerTest::SetUp();  // no run owns the server yet
  }

  std::string Ask(const std::string& probe) {
    return tandem::testing::HttpGet(observation_.port(), probe);
  }
};

auto Yes(const char* why) {
  return AllOf(HasSubstr(" 200 OK"), EndsWith(std::string("\r\n\r\n") + why + "\n"));
}
auto No(const char* why) { return AllOf(HasSubstr(" 503 "), HasSubstr(why)); }

TEST_F(HealthTest, AServerThatNobodyOwnsIsReady) {
  EXPECT_THAT(Ask("/startupz"), Yes("the model is loaded"));
  EXPECT_THAT(Ask("/readyz"), Yes("version 0; no run owns this server"));
  EXPECT_THAT(Ask("/livez"), Yes("the engine moves"));
}

TEST_F(HealthTest, AnOwnedServerIsReadyFromTheOwnersFirstCommitOn) {
  ASSERT_TRUE(Claim("run", 1).ok());
  EXPECT_THAT(Ask("/readyz"),
              No("run 'run' owns this server and has committed no weights yet under epoch 1"));
  ExpectPushWorks(3);
  EXPECT_THAT(Ask("/readyz"), Yes("version 3 of run 'run'"));
  ASSERT_TRUE(Claim("run", 2).ok());
  EXPECT_THAT(Ask("/readyz"), No("under epoch 2")) << "the weights are those of the epoch before";
  ASSERT_TRUE(Claim("run", 2, /*release=*/true).ok());
  EXPECT_THAT(Ask("/readyz"), Yes("version 3; no run owns this server"));
}

TEST_F(HealthTest, AServerWhoseWeightsTheOwnerFoundInPlaceIsReadyOnceItIsAsked) {
  gate_.Open();
  ASSERT_TRUE(Claim("run", 1).ok());
  EXPECT_TRUE(Generate(Request(1, 2, /*run_id=*/"")).status.ok());
  EXPECT_THAT(Ask("/readyz"), No("no weights yet")) << "a client without ownership proves nothing";
  EXPECT_TRUE(Generate(Request(2)).status.ok());
  EXPECT_THAT(Ask("/readyz"), Yes("version 0 of run 'run'"));
}

TEST_F(HealthTest, AServerBehindWhatItsOwnerAskedForIsNotReady) {
  gate_.Open();
  ASSERT_TRUE(Claim("run", 1).ok());
  ExpectPushWorks(3);
  v1::GenerateGroupRequest request = Request(1);
  request.set_min_weight_version(5);
  EXPECT_EQ(Generate(request).status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(Ask("/readyz"), No("version 3 is live, and run 'run' asks for at least 5"));
  ExpectPushWorks(5);
  EXPECT_THAT(Ask("/readyz"), Yes("version 5 of run 'run'"));
}

TEST_F(HealthTest, TheGaugesOfGroupsAreOfNowThoughTheEngineDoesNotMove) {
  auto held = std::async(std::launch::async, [&] { return Generate(Request(1)); });
  WaitForInfo([](const auto& info) { return info.num_groups_queued() == 1; });
  std::string page = Ask("/metrics");  // within the first step, which the gate holds
  EXPECT_THAT(page, HasSubstr("\ntandem_groups_queued 1\n"));
  EXPECT_THAT(page, ::testing::Not(HasSubstr("\ntandem_group_memory_bytes 0\n")));
  gate_.Open();
  EXPECT_TRUE(held.get().status.ok());
  WaitForInfo([](const auto& info) { return info.num_groups_running() == 0; });
  page = Ask("/metrics");  // the last step's numbers were taken before its group had ended
  EXPECT_THAT(page, HasSubstr("\ntandem_groups_queued 0\n"));
  EXPECT_THAT(page, HasSubstr("\ntandem_groups_running 0\n"));
}

TEST_F(HealthTest, ADrainingServerIsLiveAndNotReady) {
  server_->StartDrain();
  EXPECT_THAT(Ask("/readyz"), No("draining"));
  EXPECT_THAT(Ask("/livez"), HasSubstr(" 200 "));
}

TEST_F(HealthTest, AServerThatStopsAnswersUntilItIsGone) {
  server_.reset();
  EXPECT_THAT(Ask("/readyz"), No("stopping"));
  EXPECT_THAT(Ask("/livez"), Yes("stopping"));
}

TEST_F(HealthTest, AnEngineThatHangsInAStepFailsLivenessAndAnIdleOneDoesNot) {
  clock_skew_ = 1000;  // idle for a thousand seconds
  EXPECT_THAT(Ask("/livez"), HasSubstr(" 200 "));
  EXPECT_EQ(Info().engine_silent_ms(), 0);
  EXPECT_EQ(Info().max_engine_silent_ms(), 120'000);
  auto hanging = std::async(std::launch::async, [&] { return Generate(Request(1)); });
  WaitForInfo([](const auto& info) { return info.num_groups_queued() == 1; });
  EXPECT_THAT(Ask("/livez"), HasSubstr(" 200 ")) << "a step may take its time";
  clock_skew_ = 1000 + options_.liveness_seconds + 1;
  EXPECT_THAT(Ask("/livez"), No("the engine has work and did not move for 1"));
  EXPECT_THAT(Ask("/readyz"), HasSubstr(" 200 ")) << "that is not this probe's to say";
  EXPECT_GE(Info().engine_silent_ms(), Info().max_engine_silent_ms()) << "callers hear of it too";
  gate_.Open();
  EXPECT_TRUE(hanging.get().status.ok());
  EXPECT_TRUE(
      tandem::testing::WaitUntil([&] { return Ask("/livez").find(" 200 ") != std::string::npos; }));
  WaitForInfo([](const auto& info) { return info.engine_silent_ms() == 0; });
}

TEST_F(HealthTest, AnEngineHeldUpByNoStepIsLiveWhileWeightsCome) {
  ASSERT_TRUE(Claim("run", 1).ok());
  ASSERT_TRUE(Begin(1).ok());
  ASSERT_TRUE(Push({Chunk(1, 0, 0, "AAAA")}).ok());
  clock_skew_ = 100000;  // a day of it
  EXPECT_THAT(Ask("/livez"), Yes("the engine moves"));
}

TEST(ReadinessTest, AFailedEngineIsNotReady) {
  const ProbeAnswer answer = JudgeReadiness({.failure = absl::InternalError("out of memory")});
  EXPECT_FALSE(answer.yes);
  EXPECT_EQ(answer.why, "the engine failed: out of memory");
}

}  // namespace
}  // namespace tandem::rollout
