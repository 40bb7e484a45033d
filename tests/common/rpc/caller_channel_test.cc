// A caller's connection to a server that is not up yet, or not any more.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>

#include "common/rpc/caller_channel.h"
#include "tests/support/health_call.h"
#include "tests/support/identities.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tls_server.h"

namespace tandem::rpc {
namespace {

using ::grpc::StatusCode::OK;
using ::grpc::StatusCode::UNAVAILABLE;
using ::tandem::testing::CheckHealth;
using ::tandem::testing::MakeAuthority;
using ::tandem::testing::RequestOf;
using ::tandem::testing::TempDir;
using ::tandem::testing::TlsServer;
using ::tandem::testing::WriteIdentity;

class CallerChannelTest : public ::testing::Test {
 protected:
  CallerChannelTest() {
    WriteIdentity(directory_ / "tls", authority_, RequestOf("trainer"));
    server_ = std::make_unique<TlsServer>(key_);
    auto caller = Caller::Load({.directory = directory_ / "tls"}, {Role::kTrainer}, "trainer");
    EXPECT_THAT(caller, testing::IsOk());
    channel_ = std::make_unique<CallerChannel>(server_->address(), *caller);
  }

  grpc::StatusCode Call() {
    const auto used = channel_->current();
    const grpc::Status status = CheckHealth(used);
    channel_->Ended(used, status);
    return status.error_code();
  }

  TempDir directory_;
  const cli::CertificateAuthority authority_ = MakeAuthority();
  const cli::CertifiedKey key_ = *authority_.Sign(RequestOf("rollout"));
  std::unique_ptr<TlsServer> server_;
  std::unique_ptr<CallerChannel> channel_;
};

TEST_F(CallerChannelTest, TheFirstCallAfterTheServerCameFindsIt) {
  server_.reset();
  EXPECT_EQ(Call(), UNAVAILABLE);
  EXPECT_EQ(Call(), UNAVAILABLE);
  server_ = std::make_unique<TlsServer>(key_, channel_->address());
  EXPECT_EQ(Call(), OK);
}

TEST_F(CallerChannelTest, TheFirstCallAfterTheServerCameBackFindsIt) {
  EXPECT_EQ(Call(), OK);
  server_.reset();
  EXPECT_EQ(Call(), UNAVAILABLE);
  server_ = std::make_unique<TlsServer>(key_, channel_->address());
  EXPECT_EQ(Call(), OK);
}

TEST_F(CallerChannelTest, CallsShareAConnectionUntilOneOfThemFindsNoServer) {
  const auto first = channel_->current();
  channel_->Ended(first, grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "later"));
  EXPECT_EQ(channel_->current(), first);
  channel_->Ended(first, grpc::Status(UNAVAILABLE, "gone"));
  const auto second = channel_->current();
  EXPECT_NE(second, first);
  channel_->Ended(first, grpc::Status(UNAVAILABLE, "gone"));
  EXPECT_EQ(channel_->current(), second) << "said of the first";
  channel_->Ended(second, grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "silent"));
  EXPECT_NE(channel_->current(), second);
}

}  // namespace
}  // namespace tandem::rpc
