// The bridge behind the trainer's own client and certificates.
#include "trainer/foreign/foreign_bridge.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "common/rpc/caller_channel.h"
#include "common/rpc/grpc_call.h"
#include "proto/rollout.grpc.pb.h"
#include "tests/support/identities.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/trainer/foreign/fake_vllm.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FakeVllm;
using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;

grpc::Status Ask(rpc::CallerChannel& channel, rollout::v1::GetInfoResponse* info) {
  grpc::ClientContext context;
  rpc::SetDeadline(context, absl::Seconds(60));
  channel.Identify(&context);
  return rollout::v1::RolloutService::NewStub(channel.current())->GetInfo(&context, {}, info);
}

class ForeignBridgeTest : public ::testing::Test {
 protected:
  TempDir directory_;
  std::unique_ptr<Tokenizer> tokenizer_ =
      Tokenizer::Load(TANDEM_SOURCE_DIR "/tests/testdata/smollm2-tokenizer").value();
  const ForeignRun run_ = {.model = directory_.path(),
                           .weights_dir = directory_ / "weights",
                           .tokenizer = tokenizer_.get()};
  FakeVllm vllm_;
};

TEST_F(ForeignBridgeTest, ThereIsNoneWithoutForeignServers) {
  const auto bridge = ForeignBridge::Start({"127.0.0.1:1", "dns:rollout:50051"}, run_);
  ASSERT_THAT(bridge, IsOk());
  EXPECT_EQ(*bridge, nullptr);
}

TEST_F(ForeignBridgeTest, ACallerWithTlsReachesAForeignServerByItsEntry) {
  vllm_.set_tokens(ForeignServer(vllm_.address(), run_).probe_ids());
  const auto bridge = ForeignBridge::Start({vllm_.address()}, run_);
  ASSERT_THAT(bridge, IsOk());
  const std::string identity = tandem::testing::WriteIdentity(
      directory_ / "tls", tandem::testing::MakeAuthority(), tandem::testing::RequestOf("trainer"));
  auto caller = rpc::Caller::Load({.directory = identity}, {rpc::Role::kTrainer}, "trainer.tls");
  ASSERT_THAT(caller, IsOk());
  (*bridge)->RouteTo(&*caller);
  rpc::CallerChannel channel(vllm_.address(), *caller);
  rollout::v1::GetInfoResponse info;
  const grpc::Status status = Ask(channel, &info);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(info.numerics(), "foreign");
  // Other addresses are still called over TLS, which a plaintext service does not answer.
  EXPECT_EQ(caller->TargetOf("127.0.0.1:1"), "127.0.0.1:1");
}

TEST_F(ForeignBridgeTest, AServerThatIsNotThereIsUnavailable) {
  const auto bridge = ForeignBridge::Start({"vllm://127.0.0.1:1"}, run_);
  ASSERT_THAT(bridge, IsOk());
  rpc::Caller caller;
  (*bridge)->RouteTo(&caller);
  rpc::CallerChannel channel("vllm://127.0.0.1:1", caller);
  rollout::v1::GetInfoResponse info;
  const grpc::Status status = Ask(channel, &info);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
}

}  // namespace
}  // namespace tandem::trainer
