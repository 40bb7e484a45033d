// Certificates, the authority and tokens change under load, and no call fails.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "cli/security/development_identities.h"
#include "common/rpc/credentials.h"
#include "proto/rollout.grpc.pb.h"
#include "rollout_server/rollout_server.h"
#include "tests/rollout_server/scripted_engine.h"
#include "tests/support/health_call.h"
#include "tests/support/identities.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tls_server.h"
#include "tests/support/wait_until.h"

namespace tandem::rollout {
namespace {

using ::tandem::testing::CheckHealth;
using ::tandem::testing::IsOk;
using ::tandem::testing::RequestOf;
using ::tandem::testing::TempDir;
using ::tandem::testing::TlsServer;
using ::tandem::testing::WaitUntil;
using ::tandem::testing::WriteText;

std::string Contents(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Asks for the server's state until it is stopped: from one thread over a connection that stays,
// from another over a new one each time.
class Load {
 public:
  Load(std::string address, rpc::Caller caller)
      : address_(std::move(address)), caller_(std::move(caller)) {
    for (const bool anew : {false, true}) threads_.emplace_back([this, anew] { Ask(anew); });
  }
  ~Load() { Stop(); }

  void Stop() {
    stopping_ = true;
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }

  int64_t num_calls() const { return calls_; }
  std::string failures() const { return failures_; }  // after Stop

 private:
  std::shared_ptr<grpc::Channel> Connect() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(address_, caller_.credentials(), arguments);
  }

  void Ask(bool anew) {
    auto channel = Connect();
    while (!stopping_) {
      if (anew) channel = Connect();
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
      v1::GetInfoResponse info;
      const grpc::Status status =
          v1::RolloutService::NewStub(channel)->GetInfo(&context, {}, &info);
      ++calls_;
      if (status.ok()) continue;
      MutexLock lock(&mu_);
      failures_ += status.error_message() + "\n";
    }
  }

  const std::string address_;
  const rpc::Caller caller_;
  std::atomic<bool> stopping_{false};
  std::atomic<int64_t> calls_{0};
  Mutex mu_;
  std::string failures_;
  std::vector<std::thread> threads_;
};

class RotationTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_THAT(cli::MakeIdentities(out_, {}), IsOk());
    WriteText(server_token_, "the-first-token-of-this-test\n");
    WriteText(caller_token_, "the-first-token-of-this-test\n");
    options_.model = "scripted";
    options_.listen = "127.0.0.1:0";
    options_.tls = {.directory = out_ + "/rollout", .token_file = server_token_};
    auto server = RolloutServer::Create(
        options_, {std::make_unique<testing::ScriptedEngine>(&gate_), testing::ScriptedModel()},
        &observation_);
    ASSERT_THAT(server, IsOk());
    server_ = *std::move(server);
    auto caller = rpc::Caller::Load({.directory = out_ + "/trainer", .token_file = caller_token_},
                                    {rpc::Role::kTrainer}, "trainer");
    ASSERT_THAT(caller, IsOk());
    caller_ = *caller;
  }

  ~RotationTest() override { gate_.Open(); }

  // Any TLS client, to look at the server from outside.
  std::shared_ptr<grpc::Channel> Connect(const cli::CertifiedKey& own, const std::string& trusted) {
    grpc::ChannelArguments arguments;
    arguments.SetSslTargetNameOverride("localhost");
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(
        server_->address(), grpc::SslCredentials({trusted, own.key, own.certificate}), arguments);
  }

  // The certificate that a new connection sees, "" where there is none.
  std::string ServedCertificate() {
    grpc::ClientContext context;
    const cli::CertifiedKey viewer = {Contents(out_ + "/viewer/tls.crt"),
                                      Contents(out_ + "/viewer/tls.key")};
    CheckHealth(Connect(viewer, Contents(out_ + "/viewer/ca.crt")), &context);
    if (!context.auth_context()) return "";
    const auto found = context.auth_context()->FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
    return found.empty() ? "" : std::string(found[0].data(), found[0].size());
  }

  bool ServerTrusts(const cli::CertificateAuthority& authority) {
    const auto viewer = authority.Sign(RequestOf("viewer"));
    const grpc::Status status = CheckHealth(Connect(*viewer, Contents(out_ + "/viewer/ca.crt")));
    return status.error_code() ==
           grpc::StatusCode::UNAUTHENTICATED;  // it has no token, and got that far
  }

  // What the caller shows another rollout server of this authority; "" where it does not go on with
  // it.
  std::string ShownTo(const cli::CertificateAuthority& authority) {
    const TlsServer other(*authority.Sign(RequestOf("rollout")));
    CheckHealth(grpc::CreateChannel(other.address(), caller_.credentials()));
    return other.authorization();
  }
  bool CallerTrusts(const cli::CertificateAuthority& authority) {
    return !ShownTo(authority).empty();
  }

  cli::CertificateAuthority AuthorityInUse() {
    return *cli::CertificateAuthority::Load(
        {Contents(out_ + "/authority/ca.crt"), Contents(out_ + "/authority/ca.key")});
  }

  TempDir directory_;
  const std::string out_ = directory_ / "certs";
  const std::string server_token_ = directory_ / "server_token",
                    caller_token_ = directory_ / "caller_token";
  ServerOptions options_;
  testing::StepGate gate_;
  Observation observation_{"rollout_server"};
  std::unique_ptr<RolloutServer> server_;
  rpc::Caller caller_;
};

TEST_F(RotationTest, RenewedCertificatesAndANewAuthorityFailNoCall) {
  Load load(server_->address(), caller_);
  const auto first = AuthorityInUse();
  ASSERT_TRUE(ServerTrusts(first));

  ASSERT_THAT(cli::RenewIdentities(out_, {}), IsOk());
  EXPECT_TRUE(
      WaitUntil([&] { return ServedCertificate() == Contents(out_ + "/rollout/tls.crt"); }));

  ASSERT_THAT(cli::NewAuthority(out_, {}), IsOk());
  const auto second = AuthorityInUse();
  EXPECT_TRUE(WaitUntil([&] { return ServerTrusts(second) && CallerTrusts(second); }));
  EXPECT_TRUE(ServerTrusts(first));

  ASSERT_THAT(cli::RenewIdentities(out_, {}), IsOk());
  EXPECT_TRUE(
      WaitUntil([&] { return ServedCertificate() == Contents(out_ + "/rollout/tls.crt"); }));

  ASSERT_THAT(cli::DropAuthorityBefore(out_), IsOk());
  EXPECT_TRUE(WaitUntil([&] { return !ServerTrusts(first) && !CallerTrusts(first); }));
  EXPECT_TRUE(ServerTrusts(second));

  const int64_t until_now = load.num_calls();
  EXPECT_TRUE(WaitUntil([&] { return load.num_calls() > until_now + 20; }));
  load.Stop();
  EXPECT_EQ(load.failures(), "");
  EXPECT_GT(load.num_calls(), 100);
}

TEST_F(RotationTest, ATokenIsReplacedThroughAFileWithBoth) {
  Load load(server_->address(), caller_);
  const auto accepts = [&](const std::string& token) {
    const auto viewer = AuthorityInUse().Sign(RequestOf("viewer"));
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer " + token);
    return CheckHealth(Connect(*viewer, Contents(out_ + "/viewer/ca.crt")), &context).ok();
  };
  ASSERT_TRUE(accepts("the-first-token-of-this-test"));
  WriteText(server_token_, "the-second-token-of-this-test\nthe-first-token-of-this-test\n");
  EXPECT_TRUE(WaitUntil([&] { return accepts("the-second-token-of-this-test"); }));
  WriteText(caller_token_, "the-second-token-of-this-test\n");
  EXPECT_TRUE(WaitUntil(
      [&] { return ShownTo(AuthorityInUse()) == "Bearer the-second-token-of-this-test"; }));
  WriteText(server_token_, "the-second-token-of-this-test\n");
  EXPECT_TRUE(WaitUntil([&] { return !accepts("the-first-token-of-this-test"); }));
  const int64_t until_now = load.num_calls();
  EXPECT_TRUE(WaitUntil([&] { return load.num_calls() > until_now + 20; }));
  load.Stop();
  EXPECT_EQ(load.failures(), "");
}

}  // namespace
}  // namespace tandem::rollout
