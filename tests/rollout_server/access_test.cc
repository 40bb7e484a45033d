// Who gets in: every method, by real gRPC over TLS, as every role with a certificate that is right,
// expired, of another authority or missing, with and without the bearer token.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "rollout_server/rollout_server.h"
#include "tests/rollout_server/scripted_engine.h"
#include "tests/support/health_call.h"
#include "tests/support/identities.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem::rollout {
namespace {

using ::tandem::testing::Expired;
using ::tandem::testing::IsOk;
using ::tandem::testing::MakeAuthority;
using ::tandem::testing::RequestOf;
using ::tandem::testing::TempDir;
using ::tandem::testing::WriteIdentity;
using ::tandem::testing::WriteText;

constexpr char kToken[] = "a-token-of-the-tests-0123456789";

// By hand, and not from the table that is tested.
const std::map<std::string, std::set<std::string>> kMayCall = {
    {"/tandem.rollout.v1.RolloutService/GenerateGroup", {"trainer", "client"}},
    {"/tandem.rollout.v1.RolloutService/Score", {"trainer", "client"}},
    {"/tandem.rollout.v1.RolloutService/AbortGroup", {"trainer", "client"}},
    {"/tandem.rollout.v1.RolloutService/GetInfo", {"trainer", "client", "viewer"}},
    {"/tandem.weights.v1.WeightService/InitTransfer", {"trainer"}},
    {"/tandem.weights.v1.WeightService/BeginUpdate", {"trainer"}},
    {"/tandem.weights.v1.WeightService/PushChunks", {"trainer"}},
    {"/tandem.weights.v1.WeightService/JoinPushGroup", {"trainer"}},
    {"/tandem.weights.v1.WeightService/ReceiveBuckets", {"trainer"}},
    {"/tandem.weights.v1.WeightService/CommitUpdate", {"trainer"}},
    {"/tandem.weights.v1.WeightService/AbortUpdate", {"trainer"}},
    {"/tandem.weights.v1.WeightService/Pause", {"trainer"}},
    {"/tandem.weights.v1.WeightService/Resume", {"trainer"}},
    {"/tandem.weights.v1.WeightService/GetWeightInfo", {"trainer", "client", "viewer"}},
    {"/grpc.health.v1.Health/Check", {"trainer", "client", "viewer"}},
    {"/grpc.health.v1.Health/Watch", {"trainer", "client", "viewer"}},
    {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
     {"trainer", "client", "viewer"}},
    {"/tandem.weights.v1.WeightService/Shutdown", {}},
    {"/tandem.rollout.v1.RolloutService/", {}},
    {"/grpc.channelz.v1.Channelz/GetServers", {}},
};
const std::vector<std::string> kRoles = {"trainer", "client", "viewer", "rollout", "stranger"};

class AccessTest : public ::testing::Test {
 protected:
  ~AccessTest() override {
    gate_.Open();
    server_.reset();
  }

  void StartServer(bool with_token) {
    ServerOptions options;
    options.model = "scripted";
    options.listen = "127.0.0.1:0";
    options.reflection = true;
    options.tls.directory = WriteIdentity(directory_ / "rollout", authority_, RequestOf("rollout"));
    if (with_token) {
      options.tls.token_file = directory_ / "token";
      WriteText(options.tls.token_file, std::string(kToken) + "\n");
    }
    auto server = RolloutServer::Create(
        options, {std::make_unique<testing::ScriptedEngine>(&gate_), testing::ScriptedModel()},
        &observation_);
    ASSERT_THAT(server, IsOk());
    server_ = *std::move(server);
  }

  // What any TLS client could do: our own callers refuse to start with a certificate that is bad.
  std::shared_ptr<grpc::Channel> Connect(const std::optional<front::CertifiedKey>& identity) {
    grpc::SslCredentialsOptions ssl;
    ssl.pem_root_certs = authority_.certificate();
    if (identity) {
      ssl.pem_cert_chain = identity->certificate;
      ssl.pem_private_key = identity->key;
    }
    grpc::ChannelArguments arguments;
    arguments.SetSslTargetNameOverride("localhost");
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(server_->address(), grpc::SslCredentials(ssl), arguments);
  }

  // One empty message of any method; OK once anything came back.
  static grpc::Status Call(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                           const std::string& token) {
    grpc::GenericStub stub(channel);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
    grpc::CompletionQueue queue;
    const auto call = stub.PrepareCall(&context, method, &queue);
    const auto wait = [&] {
      void* tag = nullptr;
      bool good = false;
      return queue.Next(&tag, &good) && good;
    };
    call->StartCall(nullptr);
    bool answered = false;
    if (wait()) {
      call->WriteLast(tandem::testing::EmptyMessage(), {}, nullptr);
      wait();
      grpc::ByteBuffer answer;
      call->Read(&answer, nullptr);
      answered = wait();
    }
    if (answered) context.TryCancel();
    grpc::Status status;
    call->Finish(&status, nullptr);
    wait();
    queue.Shutdown();
    while (wait()) {
    }
    return answered ? grpc::Status::OK : status;
  }

  front::CertifiedKey SignedFor(const std::string& role) {
    return *authority_.Sign(RequestOf(role));
  }

  void ExpectNoConnection(const std::string& who,
                          const std::optional<front::CertifiedKey>& identity) {
    const auto channel = Connect(identity);
    for (const auto& [method, roles] : kMayCall) {
      EXPECT_EQ(Call(channel, method, kToken).error_code(), grpc::StatusCode::UNAVAILABLE)
          << who << " " << method;
    }
  }

  TempDir directory_;
  const front::CertificateAuthority authority_ = MakeAuthority();
  testing::StepGate gate_;
  Observation observation_{"rollout_server"};
  std::unique_ptr<RolloutServer> server_;
};

bool IsRefusal(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::PERMISSION_DENIED ||
         status.error_code() == grpc::StatusCode::UNAUTHENTICATED ||
         status.error_code() == grpc::StatusCode::UNAVAILABLE;
}

TEST_F(AccessTest, ARoleMayCallWhatItsRowSaysAndNothingElse) {
  StartServer(/*with_token=*/false);
  for (const std::string& role : kRoles) {
    const auto channel = Connect(SignedFor(role));
    for (const auto& [method, roles] : kMayCall) {
      const grpc::Status status = Call(channel, method, "");
      if (roles.contains(role)) {
        EXPECT_FALSE(IsRefusal(status)) << role << " " << method << ": " << status.error_message();
      } else {
        EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED)
            << role << " " << method << ": " << status.error_message();
      }
    }
  }
}

TEST_F(AccessTest, WithoutACertificateThereIsNoConnection) {
  StartServer(/*with_token=*/false);
  ExpectNoConnection("nobody", std::nullopt);
}

TEST_F(AccessTest, ACertificateOfAnotherAuthorityMakesNoConnection) {
  StartServer(/*with_token=*/false);
  const auto other = MakeAuthority();  // of the same name, with another key
  for (const std::string& role : kRoles) ExpectNoConnection(role, *other.Sign(RequestOf(role)));
}

TEST_F(AccessTest, AnExpiredCertificateMakesNoConnection) {
  StartServer(/*with_token=*/false);
  for (const std::string& role : kRoles) {
    ExpectNoConnection(role, *authority_.Sign(Expired(RequestOf(role))));
  }
}

TEST_F(AccessTest, ARoleByCommonNameIsARoleToo) {
  StartServer(/*with_token=*/false);
  auto request = RequestOf("viewer");
  request.uris.clear();
  const auto channel = Connect(*authority_.Sign(request));
  EXPECT_FALSE(IsRefusal(Call(channel, "/tandem.rollout.v1.RolloutService/GetInfo", "")));
  EXPECT_EQ(Call(channel, "/tandem.rollout.v1.RolloutService/Score", "").error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
}

TEST_F(AccessTest, WithTokensACallNeedsARoleAndAToken) {
  StartServer(/*with_token=*/true);
  for (const std::string& role : kRoles) {
    const auto channel = Connect(SignedFor(role));
    for (const auto& [method, roles] : kMayCall) {
      const grpc::Status without = Call(channel, method, "");
      const grpc::Status wrong = Call(channel, method, "another-token-of-the-same-size-1");
      const grpc::Status right = Call(channel, method, kToken);
      if (!roles.contains(role)) {
        for (const auto& status : {without, wrong, right}) {
          EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED)
              << role << " " << method;
        }
        continue;
      }
      EXPECT_EQ(without.error_code(), grpc::StatusCode::UNAUTHENTICATED) << role << " " << method;
      EXPECT_EQ(wrong.error_code(), grpc::StatusCode::UNAUTHENTICATED) << role << " " << method;
      EXPECT_EQ(wrong.error_message(), "not a bearer token of this server");
      EXPECT_FALSE(IsRefusal(right)) << role << " " << method << ": " << right.error_message();
    }
  }
}

TEST_F(AccessTest, ATokenIsNoCertificate) {
  StartServer(/*with_token=*/true);
  ExpectNoConnection("nobody with a token", std::nullopt);
}

TEST_F(AccessTest, PlaintextDoesNotReachAServerWithTls) {
  StartServer(/*with_token=*/false);
  const auto channel = grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials());
  for (const auto& [method, roles] : kMayCall) {
    EXPECT_EQ(Call(channel, method, "").error_code(), grpc::StatusCode::UNAVAILABLE) << method;
  }
}

}  // namespace
}  // namespace tandem::rollout
