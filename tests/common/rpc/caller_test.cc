// The caller's side: which peers it accepts as rollout servers, and to which it sends its token.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <string>

#include "common/rpc/credentials.h"
#include "tests/support/health_call.h"
#include "tests/support/identities.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tls_server.h"

namespace tandem::rpc {
namespace {

using ::tandem::testing::CheckHealth;
using ::tandem::testing::Expired;
using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::MakeAuthority;
using ::tandem::testing::RequestOf;
using ::tandem::testing::TempDir;
using ::tandem::testing::TlsServer;
using ::tandem::testing::WriteIdentity;
using ::tandem::testing::WriteText;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class CallerTest : public ::testing::Test {
 protected:
  CallerTest() {
    WriteIdentity(options_.directory, authority_, RequestOf("trainer"));
    WriteText(options_.token_file, "a-token-of-the-tests\n");
  }

  grpc::Status Call(const std::string& address) {
    const auto caller = Caller::Load(options_, {Role::kTrainer}, "trainer");
    EXPECT_THAT(caller, IsOk());
    return CheckHealth(grpc::CreateChannel(address, caller->credentials()));
  }

  void ExpectRefused(const std::string& who, const cli::CertifiedKey& own) {
    const TlsServer server(own);
    EXPECT_EQ(Call(server.address()).error_code(), grpc::StatusCode::UNAVAILABLE) << who;
    EXPECT_EQ(server.num_calls(), 0) << who;
  }

  TempDir directory_;
  const cli::CertificateAuthority authority_ = MakeAuthority();
  TlsOptions options_ = {.directory = directory_ / "tls", .token_file = directory_ / "token"};
};

TEST_F(CallerTest, GoesOnWithARolloutServerAndShowsItsToken) {
  const TlsServer server(*authority_.Sign(RequestOf("rollout")));
  const grpc::Status status = Call(server.address());
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(server.num_calls(), 1);
  EXPECT_EQ(server.authorization(), "Bearer a-token-of-the-tests");
}

TEST_F(CallerTest, TheHostNameIsNotAsked) {
  auto request = RequestOf("rollout");
  request.dns = {"elsewhere.example"};
  request.ips = {"192.0.2.1"};
  const TlsServer server(*authority_.Sign(request));
  EXPECT_TRUE(Call(server.address()).ok());
}

TEST_F(CallerTest, NoOtherHolderOfACertificateCanPoseAsAServer) {
  for (const char* role : {"trainer", "client", "viewer", "stranger"}) {
    ExpectRefused(role, *authority_.Sign(RequestOf(role)));
  }
  auto both = RequestOf("rollout");
  both.uris.push_back("spiffe://test/tandem/viewer");
  ExpectRefused("two SPIFFE ids", *authority_.Sign(both));
}

TEST_F(CallerTest, AServerOfAnotherAuthorityOrPastItsTimeIsRefused) {
  ExpectRefused("another authority", *MakeAuthority().Sign(RequestOf("rollout")));
  ExpectRefused("expired", *authority_.Sign(Expired(RequestOf("rollout"))));
  auto client = RequestOf("rollout");
  client.serves = false;
  ExpectRefused("not for servers", *authority_.Sign(client));
}

TEST_F(CallerTest, DoesNotFallBackToPlaintext) {
  rollout::v1::RolloutService::Service service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  EXPECT_EQ(Call("127.0.0.1:" + std::to_string(port)).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(CallerTest, ATokenNeedsTls) {
  options_.directory.clear();
  EXPECT_THAT(Caller::Load(options_, {Role::kTrainer}, "trainer"),
              FailsWith(kInvalid, "trainer.token_file without trainer.tls"));
  EXPECT_THAT(Caller::Load(options_, {Role::kTrainer}, ""),
              FailsWith(kInvalid, "--token-file without --tls"));
  options_.token_file.clear();
  const auto caller = Caller::Load(options_, {Role::kTrainer}, "");
  ASSERT_THAT(caller, IsOk());
  EXPECT_TRUE(caller->is_plaintext());
}

TEST_F(CallerTest, ACallerNeedsARoleThatMayCall) {
  WriteIdentity(options_.directory, authority_, RequestOf("rollout"));
  EXPECT_THAT(Caller::Load(options_, {Role::kClient, Role::kViewer}, ""),
              FailsWith(kInvalid, "--tls: " + options_.directory +
                                      "/tls.crt: of role rollout, must be of client, viewer"));
  EXPECT_THAT(Caller::Check(options_, {Role::kTrainer}, "trainer"),
              FailsWith(kInvalid, "trainer.tls: "));
}

}  // namespace
}  // namespace tandem::rpc
