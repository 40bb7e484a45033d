// Access control by real gRPC. First: every method over TLS, as every role, with a certificate that
// is valid, expired, of another authority or missing, with and without the bearer token. Then: what
// a client with access can do to a run that owns the server, over TLS and in plaintext, which is
// nothing or bounded.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/log.h"
#include "rollout_server/rollout_server.h"
#include "tests/rollout_server/calling_process.h"
#include "tests/rollout_server/scripted_engine.h"
#include "tests/support/health_call.h"
#include "tests/support/identities.h"
#include "tests/support/secret_channel.h"
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

// Written by hand, and not taken from the table under test.
const std::map<std::string, std::set<std::string>> kMayCall = {
    {"/tandem.rollout.v1.RolloutService/GenerateGroup", {"trainer", "client"}},
    {"/tandem.rollout.v1.RolloutService/Score", {"trainer", "client"}},
    {"/tandem.rollout.v1.RolloutService/AbortGroup", {"trainer", "client"}},
    {"/tandem.rollout.v1.RolloutService/ContinueCompletion", {"trainer", "client"}},
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
    options_.reflection = true;
    options_.tls.directory =
        WriteIdentity(directory_ / "rollout", authority_, RequestOf("rollout"));
    if (with_token) {
      options_.tls.token_file = directory_ / "token";
      WriteText(options_.tls.token_file, std::string(kToken) + "\n");
    }
    Start();
  }

  void Start() {
    options_.model = "scripted";
    options_.listen = "127.0.0.1:0";
    auto server = RolloutServer::Create(
        options_,
        {std::make_unique<testing::ScriptedEngine>(&gate_, max_running_), testing::ScriptedModel()},
        &observation_, [this] { return MonotonicSeconds() + clock_skew_.load(); });
    ASSERT_THAT(server, IsOk());
    server_ = *std::move(server);
  }

  // As any TLS client could; our own callers refuse to start with a bad certificate.
  std::shared_ptr<grpc::ChannelCredentials> CredentialsOf(
      const std::optional<cli::CertifiedKey>& identity) const {
    grpc::SslCredentialsOptions ssl;
    ssl.pem_root_certs = authority_.certificate();
    if (identity) {
      ssl.pem_cert_chain = identity->certificate;
      ssl.pem_private_key = identity->key;
    }
    return grpc::SslCredentials(ssl);
  }

  static grpc::ChannelArguments ArgumentsForTls() {
    grpc::ChannelArguments arguments;
    arguments.SetSslTargetNameOverride("localhost");
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return arguments;
  }

  std::shared_ptr<grpc::Channel> Connect(const std::optional<cli::CertifiedKey>& identity) {
    return grpc::CreateCustomChannel(server_->address(), CredentialsOf(identity),
                                     ArgumentsForTls());
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

  cli::CertifiedKey SignedFor(const std::string& role) { return *authority_.Sign(RequestOf(role)); }

  void ExpectNoConnection(const std::string& who,
                          const std::optional<cli::CertifiedKey>& identity) {
    const auto channel = Connect(identity);
    for (const auto& [method, roles] : kMayCall) {
      EXPECT_EQ(Call(channel, method, kToken).error_code(), grpc::StatusCode::UNAVAILABLE)
          << who << " " << method;
    }
  }

  TempDir directory_;
  const cli::CertificateAuthority authority_ = MakeAuthority();
  ServerOptions options_;
  size_t max_running_ = 8;
  std::atomic<double> clock_skew_{0};  // seconds the server's clock is ahead
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

// --- What others can do to the run that owns the server

using testing::Process;

constexpr char kOwnersSecret[] = "the secret that the owner alone knows";
constexpr char kOthersSecret[] = "the secret that an attacker alone has";

// The parameter is true over TLS, where the owner is a trainer and its attacker a client, and false
// in plaintext, where neither has an identity.
class OwnedServerTest : public AccessTest, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    options_.max_queued_groups = 4;
    ASSERT_NO_FATAL_FAILURE(GetParam() ? StartServer(/*with_token=*/false) : Start());
    Meet();
  }

  // A server that runs one group at a time.
  void StartAgainForOneGroup() {
    max_running_ = 1;
    server_.reset();
    ASSERT_NO_FATAL_FAILURE(Start());
    Meet();
  }

  void Meet() {
    owner_ = As("trainer", kOwnersSecret);
    attacker_ = As("client", kOthersSecret);
  }

  std::unique_ptr<Process> As(const std::string& role, const std::string& secret) {
    if (!GetParam()) {
      return std::make_unique<Process>(tandem::testing::SecretChannel(server_->address(), secret));
    }
    return std::make_unique<Process>(tandem::testing::SecretChannel(
        server_->address(), secret, CredentialsOf(SignedFor(role)), ArgumentsForTls()));
  }

  // Each check is a round trip, which lets the server's threads run.
  template <typename Predicate>
  void WaitForInfo(Predicate ready) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!ready(owner_->Info())) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << owner_->Info().DebugString();
    }
  }
  void WaitForQueued(int32_t count) {
    WaitForInfo([count](const auto& info) { return info.num_groups_queued() == count; });
  }

  std::unique_ptr<Process> owner_, attacker_;
};

INSTANTIATE_TEST_SUITE_P(OverTls, OwnedServerTest, ::testing::Values(true));
INSTANTIATE_TEST_SUITE_P(InPlaintext, OwnedServerTest, ::testing::Values(false));

constexpr auto kDenied = grpc::StatusCode::PERMISSION_DENIED;

TEST_P(OwnedServerTest, OnlyTheOwnerAbortsOrCutsItsGroups) {
  ASSERT_TRUE(owner_->Claim("run").ok());
  auto group = owner_->Start(Process::Group("run", 1));
  ASSERT_NO_FATAL_FAILURE(WaitForQueued(1));
  for (const bool finish_early : {false, true}) {
    EXPECT_EQ(attacker_->Abort("run", 1, finish_early).error_code(), kDenied);
    bool aborted = true;
    EXPECT_TRUE(attacker_->Abort("", 1, finish_early, &aborted).ok());
    EXPECT_FALSE(aborted) << "this client has no such group";
  }
  gate_.Open();
  EXPECT_TRUE(group.get().ok());
}

TEST_P(OwnedServerTest, TheOwnerAbortsItsGroup) {
  ASSERT_TRUE(owner_->Claim("run").ok());
  auto group = owner_->Start(Process::Group("run", 1));
  ASSERT_NO_FATAL_FAILURE(WaitForQueued(1));
  bool aborted = false;
  EXPECT_TRUE(owner_->Abort("run", 1, /*finish_early=*/false, &aborted).ok());
  EXPECT_TRUE(aborted);
  EXPECT_EQ(group.get().error_code(), grpc::StatusCode::ABORTED);
}

TEST_P(OwnedServerTest, NobodyTakesTheNumbersOfGroupsThatTheOwnerWillAskFor) {
  // Before the run owns the server: its run id and group number, with another request.
  auto early = attacker_->Start(Process::Group("run", 1, /*first_id=*/9));
  ASSERT_NO_FATAL_FAILURE(WaitForQueued(1));
  v1::GenerateGroupRequest batched = Process::Group("run", 2, /*first_id=*/9);
  batched.mutable_admission_batch()->set_batch_id(7);
  batched.mutable_admission_batch()->set_num_groups(3);
  auto held = attacker_->Start(batched);
  ASSERT_NO_FATAL_FAILURE(WaitForQueued(2));
  ASSERT_TRUE(owner_->Claim("run").ok());
  EXPECT_EQ(attacker_->Generate(Process::Group("run", 3, 9)).error_code(), kDenied);
  gate_.Open();
  EXPECT_TRUE(early.get().ok());
  EXPECT_TRUE(owner_->Generate(Process::Group("run", 1)).ok());
  v1::GenerateGroupRequest own = Process::Group("run", 2);
  own.mutable_admission_batch()->set_batch_id(7);
  own.mutable_admission_batch()->set_num_groups(1);
  EXPECT_TRUE(owner_->Generate(own).ok()) << "the batch is its own";
  server_->StartDrain();
  attacker_->Abort("", 2, false);
  server_.reset();  // ends what the attacker still waits for
  held.get();
}

TEST_P(OwnedServerTest, NobodyElsesVersionsMakeTheServerLookBehind) {
  gate_.Open();
  ASSERT_TRUE(owner_->Claim("run").ok());
  ASSERT_TRUE(owner_->Generate(Process::Group("run", 1)).ok());
  v1::GenerateGroupRequest request = Process::Group("run", 2);
  request.set_min_weight_version(int64_t{1} << 62);
  EXPECT_EQ(attacker_->Generate(request).error_code(), kDenied);
  request.set_run_id("");
  EXPECT_EQ(attacker_->Generate(request).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  const ProbeAnswer ready = observation_.health()->Ask(Probe::kReady);
  EXPECT_TRUE(ready.yes) << ready.why;
}

TEST_P(OwnedServerTest, NobodyElseRenewsTheLease) {
  gate_.Open();
  ASSERT_TRUE(owner_->Claim("run").ok());
  clock_skew_ = 50;
  const auto viewer = As("viewer", kOthersSecret);
  for (Process* const other : {attacker_.get(), viewer.get()}) {
    EXPECT_EQ(other->WeightInfo("run").error_code(), kDenied);
    EXPECT_TRUE(other->WeightInfo("").ok());
  }
  EXPECT_EQ(attacker_->Score("run").error_code(), kDenied);
  EXPECT_EQ(attacker_->Generate(Process::Group("run", 1)).error_code(), kDenied);
  EXPECT_EQ(attacker_->Abort("run", 1, false).error_code(), kDenied);
  EXPECT_EQ(attacker_->Claim("run").error_code(), kDenied);
  EXPECT_TRUE(attacker_->Score("").ok());
  EXPECT_TRUE(attacker_->Generate(Process::Group("", 1)).ok());
  EXPECT_EQ(owner_->Info().owner_run_id(), "run");
  clock_skew_ = 61;
  EXPECT_EQ(owner_->Info().owner_run_id(), "") << "the lease of 60 s ran from the claim";
}

TEST_P(OwnedServerTest, WhatWaitsAlreadyWhenARunClaimsTheServerWaitsBehindItsGroups) {
  ASSERT_NO_FATAL_FAILURE(StartAgainForOneGroup());
  auto running = owner_->Start(Process::Group("run", 1));
  gate_.AwaitStep();  // the engine has it, alone
  std::vector<std::future<grpc::Status>> others;
  for (int i = 1; i <= 3; ++i) {
    v1::GenerateGroupRequest urgent = Process::Group(i == 2 ? "run" : "", i);
    urgent.set_priority(std::numeric_limits<int32_t>::max());
    others.push_back(attacker_->Start(urgent));
    ASSERT_NO_FATAL_FAILURE(WaitForQueued(1 + i));
  }
  ASSERT_TRUE(owner_->Claim("run").ok());
  ASSERT_NO_FATAL_FAILURE(WaitForQueued(3));
  EXPECT_EQ(others[2].get().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED)
      << "two of four places are left to others";
  v1::GenerateGroupRequest late = Process::Group("run", 2);
  late.set_priority(-1);
  auto owners = owner_->Start(late);
  ASSERT_NO_FATAL_FAILURE(WaitForQueued(4));
  gate_.Allow(4);  // two groups of two tokens, one after the other
  EXPECT_TRUE(running.get().ok());
  EXPECT_TRUE(owners.get().ok()) << "the others came first";
  EXPECT_EQ(others[0].wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  gate_.Open();
  EXPECT_TRUE(others[0].get().ok());
  EXPECT_TRUE(others[1].get().ok());
}

TEST_P(OwnedServerTest, OthersWaitBehindTheOwnerWhateverTheirPriority) {
  ASSERT_NO_FATAL_FAILURE(StartAgainForOneGroup());
  ASSERT_TRUE(owner_->Claim("run").ok());
  auto running = owner_->Start(Process::Group("run", 1));
  gate_.AwaitStep();  // the engine has it, alone
  v1::GenerateGroupRequest urgent = Process::Group("", 1);
  urgent.set_priority(std::numeric_limits<int32_t>::max());
  auto other = attacker_->Start(urgent);
  ASSERT_NO_FATAL_FAILURE(WaitForQueued(2));
  v1::GenerateGroupRequest late = Process::Group("run", 2);
  late.set_priority(-1);
  auto owners = owner_->Start(late);
  ASSERT_NO_FATAL_FAILURE(WaitForQueued(3));
  gate_.Allow(4);  // two groups of two tokens, one after the other
  EXPECT_TRUE(running.get().ok());
  EXPECT_TRUE(owners.get().ok()) << "the other came first";
  EXPECT_EQ(other.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  gate_.Open();
  EXPECT_TRUE(other.get().ok());
}

TEST_P(OwnedServerTest, OthersFillHalfOfTheQueueAndTheOwnerAllOfIt) {
  ASSERT_TRUE(owner_->Claim("run").ok());
  std::vector<std::future<grpc::Status>> waiting;
  for (int i = 0; i < 2; ++i) waiting.push_back(attacker_->Start(Process::Group("", i)));
  ASSERT_NO_FATAL_FAILURE(WaitForQueued(2));
  const grpc::Status refused = attacker_->Generate(Process::Group("", 5));
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(refused.error_message().find(
                "full for clients without ownership: 2 groups wait, and the rest of its 4"),
            std::string::npos)
      << refused.error_message();
  for (int i = 0; i < 2; ++i) waiting.push_back(owner_->Start(Process::Group("run", i)));
  ASSERT_NO_FATAL_FAILURE(WaitForQueued(4));
  gate_.Open();
  for (auto& call : waiting) EXPECT_TRUE(call.get().ok());
}

TEST_P(OwnedServerTest, NobodyFillsThePlacesOfTheOwnersScores) {
  ASSERT_TRUE(owner_->Claim("run").ok());
  auto running = owner_->Start(Process::Group("run", 1));
  gate_.Allow(1);  // its first token; the step of the second lasts
  ASSERT_NO_FATAL_FAILURE(
      WaitForInfo([](const auto& info) { return info.num_groups_running() == 1; }));
  const auto ended = [](const auto& calls) {
    return std::ranges::count_if(calls, [](const auto& call) {
      return call.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    });
  };
  std::vector<std::future<grpc::Status>> strangers, owners;
  for (int i = 0; i < 40; ++i) strangers.push_back(attacker_->StartScore(""));
  ASSERT_NO_FATAL_FAILURE(WaitForInfo([&](const auto&) { return ended(strangers) == 8; }));
  for (int i = 0; i < 33; ++i) owners.push_back(owner_->StartScore("run"));
  // One more than the 64 places, so that the others have filled theirs.
  ASSERT_NO_FATAL_FAILURE(WaitForInfo([&](const auto&) { return ended(owners) == 1; }));
  gate_.Open();
  const auto refused = [](std::vector<std::future<grpc::Status>>& calls) {
    return std::ranges::count_if(calls, [](auto& call) {
      return call.get().error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED;
    });
  };
  EXPECT_EQ(refused(owners), 1);
  EXPECT_EQ(refused(strangers), 8);
  EXPECT_TRUE(running.get().ok());
}

TEST_P(OwnedServerTest, OnlyTheOwnerPushesPausesAndGivesTheServerBack) {
  ASSERT_TRUE(owner_->Claim("run").ok());
  // A process that has all rights on a server of its own.
  const auto other = As("trainer", kOthersSecret);
  EXPECT_EQ(other->Claim("run", 2).error_code(), kDenied);
  EXPECT_EQ(other->Claim("run", 1, /*release=*/true).error_code(), kDenied);
  EXPECT_EQ(other->Claim("theirs").error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  for (const auto& [method, status] : other->PushCalls("run")) {
    EXPECT_EQ(status.error_code(), kDenied) << method << ": " << status.error_message();
  }
  EXPECT_EQ(owner_->Info().owner_run_id(), "run");
  EXPECT_FALSE(owner_->Info().paused());
  for (const auto& [method, status] : owner_->PushCalls("run")) {
    EXPECT_NE(status.error_code(), kDenied) << method << ": " << status.error_message();
  }
  EXPECT_TRUE(owner_->Claim("run", 1, /*release=*/true).ok());
  EXPECT_TRUE(other->Claim("theirs").ok());
}

TEST_P(OwnedServerTest, AProcessThatGoesOnWithTheRunHasTheServerAtOnceAndOneWithoutItsSecretLater) {
  ASSERT_TRUE(owner_->Claim("run").ok());
  EXPECT_TRUE(As("trainer", kOwnersSecret)->Claim("run", 2).ok());
  const auto without = As("trainer", kOthersSecret);
  const grpc::Status refused = without->Claim("run", 3);
  EXPECT_EQ(refused.error_code(), kDenied);
  EXPECT_NE(refused.error_message().find("for another "), std::string::npos)
      << refused.error_message();
  clock_skew_ = 61;
  EXPECT_TRUE(without->Claim("run", 3).ok());
}

TEST_P(OwnedServerTest, AClientWithoutOwnershipEndsItsOwnGroupsOnly) {
  const auto stranger = As("client", kOwnersSecret);
  auto group = stranger->Start(Process::Group("", 1));
  ASSERT_NO_FATAL_FAILURE(WaitForQueued(1));
  bool aborted = true;
  EXPECT_TRUE(attacker_->Abort("", 1, false, &aborted).ok());
  EXPECT_FALSE(aborted);
  EXPECT_TRUE(stranger->Abort("", 1, false, &aborted).ok());
  EXPECT_TRUE(aborted);
  EXPECT_EQ(group.get().error_code(), grpc::StatusCode::ABORTED);
}

TEST_P(OwnedServerTest, NoAnswerAndNoLogLineHoldsASecret) {
  gate_.Open();
  std::vector<std::string> answers(2);
  ASSERT_TRUE(owner_->Claim("run", 1, false, &answers[0]).ok());
  const auto viewer = As("viewer", kOthersSecret);
  ASSERT_TRUE(viewer->WeightInfo("", &answers[1]).ok());
  answers.push_back(viewer->Info().SerializeAsString());
  answers.push_back(attacker_->Claim("run").error_message());
  answers.push_back(attacker_->Generate(Process::Group("run", 1)).error_message());
  ASSERT_TRUE(owner_->Generate(Process::Group("run", 1)).ok());
  for (const log::NumberedLine& line : log::LastLines(log::kRememberedLines)) {
    answers.push_back(line.text);
  }
  for (const std::string& answer : answers) {
    EXPECT_EQ(answer.find(kOwnersSecret), std::string::npos) << answer;
    EXPECT_EQ(answer.find(kOthersSecret), std::string::npos) << answer;
  }
}

TEST_F(AccessTest, OverTlsTheOwnersSecretWithAnotherCertificateIsNoOwner) {
  StartServer(/*with_token=*/false);
  const auto as = [&](const cli::CertificateRequest& request) {
    return Process(tandem::testing::SecretChannel(server_->address(), kOwnersSecret,
                                                  CredentialsOf(*authority_.Sign(request)),
                                                  ArgumentsForTls()));
  };
  cli::CertificateRequest renamed = RequestOf("trainer");
  renamed.uris = {"spiffe://test/tandem/trainer/another"};
  Process owner = as(RequestOf("trainer")), renewed = as(RequestOf("trainer"));
  Process other = as(renamed), client = as(RequestOf("client"));
  ASSERT_TRUE(owner.Claim("run").ok());
  EXPECT_EQ(other.Claim("run").error_code(), kDenied);
  EXPECT_EQ(client.Generate(Process::Group("run", 1)).error_code(), kDenied);
  gate_.Open();
  EXPECT_TRUE(renewed.Generate(Process::Group("run", 1)).ok())
      << "a renewed certificate of the same name is the same caller";
}

TEST_F(AccessTest, AClientThatNobodyCanTellFromOthersEndsNoGroup) {
  ASSERT_NO_FATAL_FAILURE(Start());
  Process nobody(grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  const grpc::Status refused = nobody.Abort("", 1, false);
  EXPECT_EQ(refused.error_code(), kDenied);
  EXPECT_NE(refused.error_message().find("tandem-caller-secret"), std::string::npos);
  EXPECT_EQ(nobody.Claim("run").error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

}  // namespace
}  // namespace tandem::rollout
