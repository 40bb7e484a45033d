#include "trainer/weight_push/weight_publisher.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>

#include "tests/support/fake_rollout_server.h"
#include "tests/support/status_matchers.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::FakeRolloutServer;
using ::tandem::testing::IsOk;

HostTensor Tensor(const std::string& name, std::vector<float> values) {
  auto owner = std::make_shared<std::vector<float>>(std::move(values));
  return {.spec = {name, DType::kF32, {static_cast<int64_t>(owner->size())}},
          .bytes = std::as_bytes(std::span(*owner)),
          .owner = owner};
}

std::vector<HostTensor> Weights(float value) {
  return {Tensor("a", std::vector<float>(700, value)), Tensor("b", {value, 2, 3})};
}

std::string Bytes(const HostTensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()};
}

class WeightPublisherTest : public ::testing::Test {
 protected:
  std::unique_ptr<WeightPublisher> Publisher(WeightPublisherOptions options = {}) {
    options.chunk_bytes = 1024;  // "a" takes three chunks
    auto publisher = std::make_unique<WeightPublisher>(&pool_, "run", options);
    EXPECT_THAT(publisher->Claim(0), IsOk());
    return publisher;
  }

  FakeRolloutServer server_{Weights(0)};
  const ServerPool pool_{{server_.address()}};
};

TEST_F(WeightPublisherTest, SkipsThePushOfWeightsTheServerLoadedItself) {
  const auto publisher = Publisher();
  ASSERT_THAT(publisher->SetWeights({0}, PresentAll(Weights(0))), IsOk());
  const ServerPush push = publisher->PushTo(0);
  EXPECT_THAT(push.status, IsOk());
  EXPECT_TRUE(push.skipped);
  EXPECT_EQ(server_.num_commits(), 0);
  EXPECT_THAT(publisher->Verify(0), IsOk());
}

TEST_F(WeightPublisherTest, DeliversEveryByteAndProvesIt) {
  const auto publisher = Publisher();
  ASSERT_THAT(publisher->SetWeights({1}, PresentAll(Weights(5))), IsOk());
  const ServerPush push = publisher->PushTo(0);
  ASSERT_THAT(push.status, IsOk());
  EXPECT_EQ(push.bytes, 703 * 4);
  EXPECT_DOUBLE_EQ(push.pause_ms, 1.5);
  EXPECT_EQ(server_.live_version(), 1);
  EXPECT_EQ(server_.live_bytes("a"), Bytes(Weights(5)[0]));
  EXPECT_EQ(push.digest, CombinedDigest(DigestTensors(Weights(5))));
  EXPECT_THAT(publisher->Verify(0), IsOk());
}

TEST_F(WeightPublisherTest, AWeightVersionZeroThatDiffersIsPushedUnderTheNewEpoch) {
  const auto publisher = Publisher();
  ASSERT_THAT(publisher->SetWeights({0}, PresentAll(Weights(9))), IsOk());
  EXPECT_THAT(publisher->PushTo(0).status, IsOk());
  EXPECT_EQ(server_.live_bytes("b"), Bytes(Weights(9)[1]));
}

TEST_F(WeightPublisherTest, AFailedCommitIsAbortedAndMadeAgain) {
  const auto publisher = Publisher();
  server_.FailNextCommits({absl::DataLossError("digest of a differs")});
  ASSERT_THAT(publisher->SetWeights({1}, PresentAll(Weights(5))), IsOk());
  EXPECT_THAT(publisher->PushTo(0).status, IsOk());
  EXPECT_EQ(server_.num_aborts(), 1);
  EXPECT_EQ(server_.num_commits(), 1);
}

TEST_F(WeightPublisherTest, LiveDigestsThatDifferAreNoDelivery) {
  const auto publisher = Publisher({.max_attempts = 1});
  server_.FlipNextDigests(1, "b");
  ASSERT_THAT(publisher->SetWeights({1}, PresentAll(Weights(5))), IsOk());
  EXPECT_THAT(publisher->PushTo(0).status,
              FailsWith(absl::StatusCode::kDataLoss, "digests differ in b"));
  EXPECT_THAT(publisher->Verify(0), FailsWith(absl::StatusCode::kDataLoss, "it differs in b"));
}

TEST_F(WeightPublisherTest, ACommitWhoseReplyWasLostIsFoundDone) {
  const auto publisher = Publisher();
  ASSERT_THAT(publisher->SetWeights({1}, PresentAll(Weights(5))), IsOk());
  ASSERT_THAT(publisher->PushTo(0).status, IsOk());
  const ServerPush again = publisher->PushTo(0);
  EXPECT_THAT(again.status, IsOk());
  EXPECT_TRUE(again.skipped);
  EXPECT_EQ(server_.num_commits(), 1);
}

TEST_F(WeightPublisherTest, ASkippedPushIsFoundOutAndNamed) {
  const auto publisher = Publisher({.debug_skip_push_at_step = 2});
  ASSERT_THAT(publisher->SetWeights({1}, PresentAll(Weights(5))), IsOk());
  ASSERT_THAT(publisher->Publish({0})[0].status, IsOk());
  ASSERT_THAT(publisher->SetWeights({2}, PresentAll(Weights(6))), IsOk());
  EXPECT_THAT(publisher->Publish({0})[0].status, IsOk()) << "the fault believes it was delivered";
  EXPECT_THAT(publisher->Verify(0),
              FailsWith(absl::StatusCode::kDataLoss, "runs weight version 1"));
  EXPECT_THAT(publisher->Verify(0),
              FailsWith(absl::StatusCode::kDataLoss, "the push was not delivered"));
}

TEST_F(WeightPublisherTest, AServerStartedAnewIsNoFraud) {
  const auto publisher = Publisher();
  ASSERT_THAT(publisher->SetWeights({1}, PresentAll(Weights(5))), IsOk());
  ASSERT_THAT(publisher->PushTo(0).status, IsOk());
  server_.Stop();
  server_.Restart();
  absl::Status status = publisher->Verify(0);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

TEST_F(WeightPublisherTest, AnotherRunsServerIsRefused) {
  server_.set_owner("other");
  WeightPublisher publisher(&pool_, "run", {});
  EXPECT_THAT(publisher.Claim(0), FailsWith(absl::StatusCode::kFailedPrecondition, "run other"));
}

TEST(JudgeRefusedClaimTest, WaitsForTheLeaseOfAProcessThatDiedAndNotForOneThatLives) {
  const absl::Status denied = absl::PermissionDeniedError("run 'r' owns this server");
  EXPECT_EQ(JudgeRefusedClaim(denied, 0, 60), denied);
  EXPECT_EQ(JudgeRefusedClaim(denied, 70, 60), denied) << "a lease that was renewed as it died";
  EXPECT_THAT(JudgeRefusedClaim(denied, 71, 60),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        "run 'r' owns this server; refused for 71 s, longer than the lease"));
  const absl::Status lost = absl::UnavailableError("gone");
  EXPECT_EQ(JudgeRefusedClaim(lost, 1000, 60), lost);
  EXPECT_EQ(JudgeRefusedClaim(absl::OkStatus(), 1000, 60), absl::OkStatus());
}

TEST_F(WeightPublisherTest, GivesTheServerBackAtTheEnd) {
  auto publisher = Publisher();
  EXPECT_EQ(server_.owner(), "run");
  publisher.reset();
  EXPECT_EQ(server_.owner(), "");
}

TEST_F(WeightPublisherTest, OneDeadServerDoesNotKeepTheOthersFromTheirWeights) {
  FakeRolloutServer dead{Weights(0)};
  const ServerPool pool({dead.address(), server_.address()});
  WeightPublisher publisher(&pool, "run", {});
  ASSERT_THAT(publisher.Claim(0), IsOk());
  ASSERT_THAT(publisher.Claim(1), IsOk());
  dead.Stop();
  ASSERT_THAT(publisher.SetWeights({1}, PresentAll(Weights(5))), IsOk());
  const auto pushes = publisher.Publish({0, 1});
  EXPECT_FALSE(pushes[0].status.ok());
  EXPECT_THAT(pushes[1].status, IsOk());
  EXPECT_EQ(server_.live_version(), 1);
}

// The weights of ranks that hold parts of them are gathered as they are read, which can fail.
TEST_F(WeightPublisherTest, KeepsTheWeightsItHasWhenNewOnesCannotBeRead) {
  const auto publisher = Publisher();
  ASSERT_THAT(publisher->SetWeights({1}, PresentAll(Weights(5))), IsOk());
  std::vector<TensorSource> sources = PresentAll(Weights(6));
  sources.back().read = [] { return absl::UnavailableError("rank 1 is lost"); };
  EXPECT_THAT(publisher->SetWeights({2}, sources),
              FailsWith(absl::StatusCode::kUnavailable, "rank 1 is lost"));
  EXPECT_EQ(publisher->version().value, 1);
  EXPECT_THAT(publisher->PushTo(0).status, IsOk());
  EXPECT_THAT(publisher->Verify(0), IsOk());
}

// One that fails in the middle of a push: the server keeps what it runs, and takes the next.
TEST_F(WeightPublisherTest, APushOfATensorThatCannotBeReadIsNoPush) {
  const auto publisher = Publisher();
  std::vector<TensorSource> sources = PresentAll(Weights(5));
  auto reads = std::make_shared<std::atomic<int>>(0);
  sources.back().read = [reads, tensor = Weights(5).back()]() -> absl::StatusOr<HostTensor> {
    if (++*reads == 2) return absl::UnavailableError("rank 1 is lost");
    return tensor;
  };
  ASSERT_THAT(publisher->SetWeights({1}, sources), IsOk());
  EXPECT_THAT(publisher->PushTo(0).status, FailsWith(absl::StatusCode::kUnavailable, "rank 1"));
  EXPECT_EQ(server_.num_commits(), 0);
  EXPECT_THAT(publisher->PushTo(0).status, IsOk());
  EXPECT_THAT(publisher->Verify(0), IsOk());
}

}  // namespace
}  // namespace tandem::trainer
