// The component `grpc` against a real service on the loopback.
#include "trainer/rewards/external/grpc_reward.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "proto/reward.grpc.pb.h"
#include "tests/support/status_matchers.h"
#include "tests/trainer/rewards/held_completions.h"
#include "trainer/rewards/rewards.h"

namespace tandem::trainer {
namespace {

using reward::v1::ScoreRequest;
using reward::v1::ScoreResponse;
using ::tandem::testing::FailsWith;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class ScriptedService final : public reward::v1::RewardService::Service {
 public:
  using Answer =
      std::function<grpc::Status(const ScoreRequest&, ScoreResponse*, grpc::ServerContext*)>;
  explicit ScriptedService(Answer answer) : answer_(std::move(answer)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~ScriptedService() override { server_->Shutdown(); }

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  grpc::Status Score(grpc::ServerContext* context, const ScoreRequest* request,
                     ScoreResponse* response) override {
    return answer_(*request, response, context);
  }

 private:
  const Answer answer_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

grpc::Status Lengths(const ScoreRequest& request, ScoreResponse* response, grpc::ServerContext*) {
  for (const reward::v1::Input& input : request.inputs()) {
    response->add_results()->set_value(static_cast<double>(input.completion().size()));
  }
  return grpc::Status::OK;
}

std::unique_ptr<RewardFunction> RewardsOf(const ScriptedService& service) {
  RewardOptions options;
  options.weights = {{"grpc", 1}};
  options.grpc.address = service.address();
  options.grpc.service.retry_initial_seconds = 0;
  options.grpc.service.workers = 1;
  return *RewardFunction::Create(options);
}

std::vector<Reward> ScoreThem(RewardFunction& rewards, const std::vector<std::string>& texts) {
  return rewards.Score(HeldCompletions(texts)->inputs());
}

TEST(GrpcReward, SendsAllThatIsKnownAndTakesRewardsInOrder) {
  ScoreRequest seen;
  ScriptedService service([&](const ScoreRequest& request, ScoreResponse* response, auto* context) {
    seen = request;
    return Lengths(request, response, context);
  });
  const auto rewards = RewardsOf(service);
  const auto scored = ScoreThem(*rewards, {"a", "bbb"});
  EXPECT_DOUBLE_EQ(scored[0].value, 1) << scored[0].mask_reason;
  EXPECT_DOUBLE_EQ(scored[1].value, 3);
  EXPECT_EQ(seen.inputs(1).completion(), "bbb");
  EXPECT_EQ(seen.inputs(1).prompt(), "What?");
  EXPECT_EQ(seen.inputs(1).answer(), "42");
  EXPECT_EQ(seen.inputs(1).source_json(), "{\"k\":3}");
}

TEST(GrpcReward, RepeatsWhereTheServiceIsBusyOrGone) {
  std::atomic<int> calls = 0;
  ScriptedService service([&](const ScoreRequest& request, ScoreResponse* response, auto* context) {
    if (++calls == 1) return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "full");
    if (calls == 2) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "starting");
    return Lengths(request, response, context);
  });
  const auto rewards = RewardsOf(service);
  EXPECT_DOUBLE_EQ(ScoreThem(*rewards, {"ab"})[0].value, 2);
  EXPECT_EQ(calls, 3);
}

TEST(GrpcReward, ARefusalMasksAllAndIsNotRepeated) {
  std::atomic<int> calls = 0;
  ScriptedService service([&](const ScoreRequest&, ScoreResponse*, auto*) {
    ++calls;
    return grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "not you");
  });
  const auto rewards = RewardsOf(service);
  for (const Reward& reward : ScoreThem(*rewards, {"a", "b"})) {
    EXPECT_THAT(reward.mask_reason, HasSubstr("reward_failed: grpc: "));
    EXPECT_THAT(reward.mask_reason, HasSubstr("not you"));
  }
  EXPECT_EQ(calls, 1);
}

TEST(GrpcReward, ChecksResultsAsThoseOfOtherServices) {
  ScriptedService service([](const ScoreRequest&, ScoreResponse* response, auto*) {
    response->add_results()->set_value(std::nan(""));
    response->add_results()->set_error("empty");
    auto* const steps = response->add_results();
    steps->set_value(1);
    steps->add_steps()->set_end(9);
    auto* const good = response->add_results();
    good->set_value(0.5);
    good->add_steps()->set_end(1);
    good->mutable_steps(0)->set_reward(0.25);
    return grpc::Status::OK;
  });
  const auto rewards = RewardsOf(service);
  const auto scored = ScoreThem(*rewards, {"a", "b", "c", "d"});
  EXPECT_THAT(scored[0].mask_reason, HasSubstr("\"reward\" is not a finite number"));
  EXPECT_THAT(scored[1].mask_reason, HasSubstr("reward service reports: empty"));
  EXPECT_THAT(scored[2].mask_reason, HasSubstr("step 0 with \"end\" 9"));
  ASSERT_THAT(scored[3].steps, SizeIs(1));
  EXPECT_DOUBLE_EQ(scored[3].steps[0].value, 0.25);
}

TEST(GrpcReward, AWrongNumberOfResultsMasksAll) {
  ScriptedService service([](const ScoreRequest&, ScoreResponse* response, auto*) {
    response->add_results()->set_value(1);
    return grpc::Status::OK;
  });
  const auto rewards = RewardsOf(service);
  EXPECT_THAT(ScoreThem(*rewards, {"a", "b"})[0].mask_reason,
              HasSubstr("gave 1 results for 2 completions"));
}

TEST(GrpcReward, AServiceThatDoesNotAnswerIsLeftWhenTheRunEnds) {
  std::latch asked(1);
  ScriptedService service([&](const ScoreRequest&, ScoreResponse*, grpc::ServerContext* context) {
    asked.count_down();
    while (!context->IsCancelled()) std::this_thread::yield();
    return grpc::Status::CANCELLED;
  });
  const auto rewards = RewardsOf(service);
  std::thread ends([&] {
    asked.wait();
    rewards->Cancel();
  });
  EXPECT_THAT(ScoreThem(*rewards, {"a"})[0].mask_reason, HasSubstr("grpc: the run ends"));
  ends.join();
}

TEST(GrpcReward, RefusesATokenInPlaintext) {
  RewardOptions options;
  options.weights = {{"grpc", 1}};
  EXPECT_THAT(RewardFunction::Create(options).status(),
              FailsWith(absl::StatusCode::kInvalidArgument, "reward.grpc.address is empty"));
  options.grpc.address = "127.0.0.1:1";
  options.grpc.token_file = "token";
  EXPECT_THAT(RewardFunction::Create(options).status(),
              FailsWith(absl::StatusCode::kInvalidArgument, "never travels in plaintext"));
}

}  // namespace
}  // namespace tandem::trainer
