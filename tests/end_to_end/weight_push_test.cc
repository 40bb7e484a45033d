// The weight push as a trainer makes it, into real servers over real gRPC and Gloo: one suite for
// both transports, with and without deltas. The servers' engine is scripted; everything else is
// real.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "rollout_server/rollout_server.h"
#include "tests/rollout_server/scripted_engine.h"
#include "tests/support/fake_rollout_server.h"
#include "tests/support/status_matchers.h"
#include "trainer/weight_publisher.h"

namespace tandem {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::FakeRolloutServer;
using ::tandem::testing::IsOk;
using trainer::PushTransport;
using trainer::ServerPush;
using trainer::WeightPublisher;

// Tensors of some sizes, none of a multiple of the bucket's.
std::vector<TensorSpec> Specs() {
  return {{"embed", DType::kBF16, {300, 257}},
          {"norm", DType::kF32, {5}},
          {"w", DType::kBF16, {70'001}}};
}

int64_t DenseBytes() {
  int64_t sum = 0;
  for (const TensorSpec& spec : Specs()) sum += spec.num_bytes();
  return sum;
}

// Weights whose bytes stay writable, to damage them.
struct Weights {
  std::vector<std::shared_ptr<std::vector<std::byte>>> bytes;

  std::vector<HostTensor> tensors() const {
    std::vector<HostTensor> tensors;
    const std::vector<TensorSpec> specs = Specs();
    for (size_t i = 0; i < specs.size(); ++i) tensors.push_back({specs[i], *bytes[i], bytes[i]});
    return tensors;
  }
};

Weights Zeros() {
  Weights weights;
  for (const TensorSpec& spec : Specs()) {
    weights.bytes.push_back(
        std::make_shared<std::vector<std::byte>>(static_cast<size_t>(spec.num_bytes())));
  }
  return weights;
}

// `before` with one element in `every` moved by one unit in the last place.
Weights Moved(const Weights& before, int64_t every) {
  Weights weights;
  const std::vector<TensorSpec> specs = Specs();
  for (size_t i = 0; i < specs.size(); ++i) {
    auto bytes = std::make_shared<std::vector<std::byte>>(*before.bytes[i]);
    const int64_t width = DTypeBytes(specs[i].dtype);
    for (int64_t e = 0; e < specs[i].num_elements(); e += every) {
      uint16_t low = 0;
      std::memcpy(&low, bytes->data() + e * width, 2);
      ++low;
      std::memcpy(bytes->data() + e * width, &low, 2);
    }
    weights.bytes.push_back(std::move(bytes));
  }
  return weights;
}

// A real server of zeros.
class Server {
 public:
  Server() { Start("127.0.0.1:0"); }

  void Start(const std::string& listen) {
    rollout::ServerOptions options;
    options.model = "scripted";
    options.listen = listen;
    rollout::ServedModel model = rollout::testing::ScriptedModel();
    model.tensors = Specs();
    model.digests = DigestTensors(Zeros().tensors());
    auto made = rollout::RolloutServer::Create(
        options, {std::make_unique<rollout::testing::ScriptedEngine>(&gate_), model},
        &observation_);
    EXPECT_THAT(made, IsOk());
    server_ = *std::move(made);
    address_ = server_->address();
  }
  // As a server that went away and came back on its port.
  void Restart() {
    Stop();
    Start(address_);
  }
  void Stop() { server_.reset(); }

  const std::string& address() const { return address_; }

 private:
  rollout::testing::StepGate gate_;
  Observation observation_{"rollout_server"};
  std::unique_ptr<rollout::RolloutServer> server_;
  std::string address_;
};

struct Kind {
  PushTransport transport;
  bool delta;

  friend std::ostream& operator<<(std::ostream& out, const Kind& kind) {
    return out << (kind.transport == PushTransport::kStream ? "stream" : "collective")
               << (kind.delta ? "_delta" : "_dense");
  }
};

class WeightPushTest : public ::testing::TestWithParam<Kind> {
 protected:
  bool over_group() const { return GetParam().transport == PushTransport::kCollective; }

  void Connect(const std::vector<std::string>& addresses) {
    trainer::WeightPublisherOptions options;
    options.transport = GetParam().transport;
    options.delta = GetParam().delta;
    options.chunk_bytes = 4096;
    options.max_attempts = 2;
    options.group.bucket_bytes = 1 << 16;
    publisher_ = std::make_unique<WeightPublisher>(addresses, "run", options);
    for (size_t i = 0; i < addresses.size(); ++i) Claim(static_cast<int>(i));
  }
  void ConnectAll(const std::vector<std::unique_ptr<Server>>& servers) {
    std::vector<std::string> addresses;
    for (const auto& server : servers) addresses.push_back(server->address());
    Connect(addresses);
  }
  void Claim(int server) { ASSERT_THAT(publisher_->Claim(server), IsOk()); }

  static std::vector<std::unique_ptr<Server>> Servers(int count) {
    std::vector<std::unique_ptr<Server>> servers;
    for (int i = 0; i < count; ++i) servers.push_back(std::make_unique<Server>());
    return servers;
  }

  std::vector<ServerPush> Publish(int64_t version, const Weights& weights,
                                  const std::vector<int>& servers) {
    EXPECT_THAT(publisher_->SetWeights({version}, weights.tensors()), IsOk());
    return publisher_->Publish(servers);
  }

  // Delivered as this transport delivers, and proven.
  void ExpectDelivered(const ServerPush& push, bool is_delta) {
    EXPECT_THAT(push.status, IsOk());
    EXPECT_EQ(push.over_group, over_group());
    EXPECT_EQ(push.is_delta, is_delta);
    ExpectProven(push);
  }
  void ExpectProven(const ServerPush& push) {
    EXPECT_EQ(push.digest, CombinedDigest(publisher_->digests()));
    EXPECT_THAT(publisher_->Verify(push.server), IsOk());
  }

  std::unique_ptr<WeightPublisher> publisher_;
};

TEST_P(WeightPushTest, EveryServerGetsEveryVersionAndProvesIt) {
  const auto servers = Servers(2);
  ConnectAll(servers);
  Weights weights = Zeros();
  for (int64_t version = 1; version <= 4; ++version) {
    weights = Moved(weights, 40);
    for (const ServerPush& push : Publish(version, weights, {0, 1})) {
      // Nobody holds the bytes of what it loaded itself.
      ExpectDelivered(push, GetParam().delta && version > 1);
    }
  }
}

TEST_P(WeightPushTest, ADeltaIsOfTheChangedElementsAndItsResultIsProven) {
  const auto servers = Servers(1);
  ConnectAll(servers);
  const Weights first = Moved(Zeros(), 1);
  EXPECT_EQ(Publish(1, first, {0})[0].bytes, DenseBytes());
  const ServerPush push = Publish(2, Moved(first, 40), {0})[0];
  ExpectDelivered(push, GetParam().delta);
  // Two bytes for every fortieth element, of two bytes each.
  const int64_t changed = (300 * 257 + 39) / 40 + 1 + (70'001 + 39) / 40;
  EXPECT_EQ(push.bytes, GetParam().delta ? 2 * changed : DenseBytes());
}

TEST_P(WeightPushTest, WeightsThatTheServersHaveAreNotSent) {
  const auto servers = Servers(2);
  ConnectAll(servers);
  for (const ServerPush& push : Publish(0, Zeros(), {0, 1})) {
    EXPECT_TRUE(push.skipped);
    EXPECT_THAT(push.status, IsOk());
  }
  const Weights weights = Moved(Zeros(), 3);
  Publish(1, weights, {1});
  const auto pushes = publisher_->Publish({0, 1});
  ExpectDelivered(pushes[0], false);
  EXPECT_TRUE(pushes[1].skipped);
}

TEST_P(WeightPushTest, AServerThatComesLateGetsAllAndTheNextPushIsForEverybody) {
  const auto servers = Servers(3);
  ConnectAll(servers);
  Weights weights = Moved(Zeros(), 7);
  for (const ServerPush& push : Publish(1, weights, {0, 1})) ExpectDelivered(push, false);
  const ServerPush late = publisher_->PushTo(2);
  EXPECT_THAT(late.status, IsOk());
  EXPECT_FALSE(late.over_group) << "between pushes it is alone";
  ExpectProven(late);
  weights = Moved(weights, 40);
  for (const ServerPush& push : Publish(2, weights, {0, 1, 2})) {
    ExpectDelivered(push, GetParam().delta);
  }
}

TEST_P(WeightPushTest, AServerThatIsNotOnLoopbackJoinsAndTheOthersStay) {
  const auto servers = Servers(2);
  const std::string& second = servers[1]->address();
  // 127.0.0.1 by a name of which nobody knows that it is.
  Connect({servers[0]->address(), "[::ffff:127.0.0.1]" + second.substr(second.rfind(':'))});
  Weights weights = Moved(Zeros(), 7);
  ExpectDelivered(Publish(1, weights, {0})[0], false);
  weights = Moved(weights, 7);
  for (const ServerPush& push : Publish(2, weights, {0, 1})) {
    ExpectDelivered(push, GetParam().delta && !over_group() && push.server == 0);
  }
  weights = Moved(weights, 7);
  for (const ServerPush& push : Publish(3, weights, {0, 1})) {
    ExpectDelivered(push, GetParam().delta);
  }
}

TEST_P(WeightPushTest, AServerThatLeftDoesNotKeepTheOthersFromTheirWeights) {
  const auto servers = Servers(3);
  ConnectAll(servers);
  Weights weights = Moved(Zeros(), 7);
  Publish(1, weights, {0, 1, 2});
  servers[1]->Stop();
  weights = Moved(weights, 7);
  auto pushes = Publish(2, weights, {0, 1, 2});
  EXPECT_EQ(pushes[1].status.code(), absl::StatusCode::kUnavailable) << pushes[1].status;
  for (const int left : {0, 2})
    ExpectDelivered(pushes[static_cast<size_t>(left)], GetParam().delta);
  weights = Moved(weights, 7);
  for (const ServerPush& push : Publish(3, weights, {0, 2})) {
    ExpectDelivered(push, GetParam().delta);
  }
}

TEST_P(WeightPushTest, AServerStartedAnewIsClaimedAnewAndGetsAll) {
  const auto servers = Servers(2);
  ConnectAll(servers);
  Weights weights = Moved(Zeros(), 7);
  Publish(1, weights, {0, 1});
  servers[0]->Restart();
  EXPECT_EQ(publisher_->Verify(0).code(), absl::StatusCode::kUnavailable);
  Claim(0);
  weights = Moved(weights, 7);
  for (const ServerPush& push : Publish(2, weights, {0, 1})) {
    // One dense push serves both through the group; the stream asks each what it holds.
    ExpectDelivered(push, GetParam().delta && !over_group() && push.server == 1);
  }
}

TEST_P(WeightPushTest, ADamagedByteIsFoundAndTheVersionBeforeServes) {
  const auto servers = Servers(2);
  ConnectAll(servers);
  const Weights first = Moved(Zeros(), 1);
  Publish(1, first, {0, 1});
  // All of it changed, so that w travels dense in a delta push too.
  const Weights second = Moved(first, 1);
  ASSERT_THAT(publisher_->SetWeights({2}, second.tensors()), IsOk());
  // After the digests were made.
  (*second.bytes[2])[12'345] ^= std::byte{1};
  for (const ServerPush& push : publisher_->Publish({0, 1})) {
    EXPECT_THAT(push.status, FailsWith(absl::StatusCode::kDataLoss, "digest of w is"));
    EXPECT_THAT(publisher_->Verify(push.server),
                FailsWith(absl::StatusCode::kDataLoss, "runs weight version 1"));
  }
  for (const ServerPush& push : Publish(3, Moved(second, 1), {0, 1})) {
    EXPECT_THAT(push.status, IsOk());
    ExpectProven(push);
  }
}

TEST_P(WeightPushTest, AnotherEpochTakesTheServersOver) {
  const auto servers = Servers(2);
  ConnectAll(servers);
  Publish(5, Moved(Zeros(), 3), {0, 1});
  ConnectAll(servers);  // the same run, resumed; the publisher before gave the servers back
  for (const ServerPush& push : Publish(4, Moved(Zeros(), 5), {0, 1})) ExpectDelivered(push, false);
}

TEST_P(WeightPushTest, AServerThatCannotJoinGetsTheStream) {
  Server able;
  FakeRolloutServer without_groups{Zeros().tensors()};
  Connect({without_groups.address(), able.address()});
  Weights weights = Zeros();
  for (int64_t version = 1; version <= 2; ++version) {
    weights = Moved(weights, 40);
    const auto pushes = Publish(version, weights, {0, 1});
    EXPECT_THAT(pushes[0].status, IsOk());
    EXPECT_FALSE(pushes[0].over_group);
    ExpectProven(pushes[0]);
    ExpectDelivered(pushes[1], GetParam().delta && version > 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, WeightPushTest,
                         ::testing::Values(Kind{PushTransport::kStream, false},
                                           Kind{PushTransport::kStream, true},
                                           Kind{PushTransport::kCollective, false},
                                           Kind{PushTransport::kCollective, true}),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace tandem
