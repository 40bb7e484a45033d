// The caller's side: whom it takes for a rollout server, and whom it shows its token.
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "common/rpc/credentials.h"
#include "tests/support/health_call.h"
#include "tests/support/identities.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem::rpc {
namespace {

using ::tandem::testing::CheckHealth;
using ::tandem::testing::Expired;
using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::MakeAuthority;
using ::tandem::testing::RequestOf;
using ::tandem::testing::TempDir;
using ::tandem::testing::WriteIdentity;
using ::tandem::testing::WriteText;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// Counts the calls that reach a server, and those that bring a token.
class CallCounter : public grpc::AuthMetadataProcessor {
 public:
  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext*, OutputMetadata*,
                       OutputMetadata*) override {
    ++calls;
    if (metadata.find("authorization") != metadata.end()) ++tokens;
    return grpc::Status::OK;
  }
  std::atomic<int> calls{0}, tokens{0};
};

// Any server that holds a key pair.
struct TlsServer {
  explicit TlsServer(const front::CertifiedKey& own) {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::SslServerCredentialsOptions ssl;
    ssl.pem_key_cert_pairs.push_back({own.key, own.certificate});
    const auto credentials = grpc::SslServerCredentials(ssl);
    credentials->SetAuthMetadataProcessor(counter);
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", credentials, &port);
    server = builder.BuildAndStart();
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port); }

  const std::shared_ptr<CallCounter> counter = std::make_shared<CallCounter>();
  int port = 0;
  std::unique_ptr<grpc::Server> server;
};

class CallerTest : public ::testing::Test {
 protected:
  CallerTest() {
    WriteIdentity(options_.directory, authority_, RequestOf("trainer"));
    WriteText(options_.token_file, "a-token-of-the-tests\n");
  }

  grpc::Status Call(const TlsServer& server, const std::string& address = "") {
    const auto caller = Caller::Load(options_, {Role::kTrainer}, "trainer");
    EXPECT_THAT(caller, IsOk());
    return CheckHealth(
        grpc::CreateChannel(address.empty() ? server.address() : address, caller->credentials()));
  }

  void ExpectRefused(const std::string& who, const front::CertifiedKey& own) {
    const TlsServer server(own);
    EXPECT_EQ(Call(server).error_code(), grpc::StatusCode::UNAVAILABLE) << who;
    EXPECT_EQ(server.counter->calls, 0) << who;
  }

  TempDir directory_;
  const front::CertificateAuthority authority_ = MakeAuthority();
  TlsOptions options_ = {.directory = directory_ / "tls", .token_file = directory_ / "token"};
};

TEST_F(CallerTest, GoesOnWithARolloutServerAndShowsItsToken) {
  const TlsServer server(*authority_.Sign(RequestOf("rollout")));
  const grpc::Status status = Call(server);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(server.counter->calls, 1);
  EXPECT_EQ(server.counter->tokens, 1);
}

TEST_F(CallerTest, TheHostNameIsNotAsked) {
  auto request = RequestOf("rollout");
  request.dns = {"elsewhere.example"};
  request.ips = {"192.0.2.1"};
  const TlsServer server(*authority_.Sign(request));
  EXPECT_TRUE(Call(server).ok());
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
  grpc::EnableDefaultHealthCheckService(true);
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  const auto server = builder.BuildAndStart();
  const auto caller = Caller::Load(options_, {Role::kTrainer}, "trainer");
  ASSERT_THAT(caller, IsOk());
  const auto channel = grpc::CreateChannel("127.0.0.1:" + std::to_string(port), caller->credentials());
  EXPECT_EQ(CheckHealth(channel).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(CallerTest, ATokenNeedsTls) {
  options_.directory.clear();
  EXPECT_THAT(Caller::Load(options_, {Role::kTrainer}, "trainer"),
              FailsWith(kInvalid, "trainer.token_file without trainer.tls"));
  EXPECT_THAT(Caller::Load(options_, {Role::kTrainer}, ""), FailsWith(kInvalid, "--token-file without --tls"));
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
  EXPECT_THAT(Caller::Check(options_, {Role::kTrainer}, "trainer"), FailsWith(kInvalid, "trainer.tls: "));
}

}  // namespace
}  // namespace tandem::rpc
