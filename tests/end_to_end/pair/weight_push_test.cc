// Weight pushes of a trainer to real servers over real gRPC and Gloo, with one suite for both
// transports, with and without deltas. The engine of the servers is scripted; everything else is
// real.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "rollout_server/rollout_server.h"
#include "tests/rollout_server/scripted_engine.h"
#include "tests/support/fake_rollout_server.h"
#include "tests/support/status_matchers.h"
#include "trainer/weight_push/weight_publisher.h"

namespace tandem {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::FakeRolloutServer;
using ::tandem::testing::IsOk;
using trainer::PushTransport;
using trainer::ServerPool;
using trainer::ServerPush;
using trainer::WeightPublisher;

// Tensors of several sizes, none of them a multiple of the bucket size.
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

// Weights whose bytes stay writable, so that a test can damage them.
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

// `before` with every `every`-th element changed in its lowest bit.
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

// A real server whose weights are zero.
class Server {
 public:
  Server() { Start("127.0.0.1:0"); }
  // Weights may arrive in the memory of its engine, where a bit of tensor `flip_in` is flipped (-1:
  // none).
  explicit Server(int flip_in) : weights_arrive_(true), flip_in_(flip_in) { Start("127.0.0.1:0"); }

  void Start(const std::string& listen) {
    rollout::ServerOptions options;
    options.model = "scripted";
    options.listen = listen;
    rollout::ServedModel model = rollout::testing::ScriptedModel();
    model.tensors = Specs();
    model.digests = DigestTensors(Zeros().tensors());
    auto engine = std::make_unique<rollout::testing::ScriptedEngine>(&gate_);
    if (weights_arrive_) engine->LetWeightsArrive(Specs(), flip_in_);
    auto made = rollout::RolloutServer::Create(options, {std::move(engine), model}, &observation_);
    EXPECT_THAT(made, IsOk());
    server_ = *std::move(made);
    address_ = server_->address();
  }
  // Like a server that ended and was restarted on its port.
  void Restart() {
    Stop();
    Start(address_);
  }
  void Stop() { server_.reset(); }

  const std::string& address() const { return address_; }

 private:
  const bool weights_arrive_ = false;
  const int flip_in_ = -1;
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
    publisher_.reset();
    pool_ = std::make_unique<ServerPool>(addresses);
    publisher_ = std::make_unique<WeightPublisher>(pool_.get(), "run", options);
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
    EXPECT_THAT(publisher_->SetWeights({version}, PresentAll(weights.tensors())), IsOk());
    return publisher_->Publish(servers);
  }

  // Delivers with this transport, and proves the delivery.
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

  std::unique_ptr<ServerPool> pool_;
  std::unique_ptr<WeightPublisher> publisher_;
};

TEST_P(WeightPushTest, EveryServerGetsEveryVersionAndProvesIt) {
  const auto servers = Servers(2);
  ConnectAll(servers);
  Weights weights = Zeros();
  for (int64_t version = 1; version <= 4; ++version) {
    weights = Moved(weights, 40);
    for (const ServerPush& push : Publish(version, weights, {0, 1})) {
      // No process has the bytes of the weights that the server loaded, so there is no base for a
      // delta.
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
  // Two bytes for every fortieth element, which has two bytes.
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
  // A name of 127.0.0.1 that does not look like a loopback address.
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
    // With the group, one dense push serves both servers. The stream asks each server for its
    // version.
    ExpectDelivered(push, GetParam().delta && !over_group() && push.server == 1);
  }
}

TEST_P(WeightPushTest, ADamagedByteIsFoundAndTheVersionBeforeServes) {
  const auto servers = Servers(2);
  ConnectAll(servers);
  const Weights first = Moved(Zeros(), 1);
  Publish(1, first, {0, 1});
  // All elements change, so that w is sent dense even in a delta push.
  const Weights second = Moved(first, 1);
  ASSERT_THAT(publisher_->SetWeights({2}, PresentAll(second.tensors())), IsOk());
  // After the digests were computed.
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
  ConnectAll(servers);  // the same run after a resume; the previous publisher released the servers
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

// Makes buckets of weights in memory of its own, as a device does. It is host memory, because
// groups over Gloo use that. The same code sends from GPU memory over NCCL.
class MadeBuckets : public trainer::BucketSource {
 public:
  explicit MadeBuckets(const Weights& weights) : tensors_(weights.tensors()) {}

  Device memory() const override { return Device::kCpu; }
  absl::StatusOr<std::span<std::byte>> Fill(size_t place, const Bucket& bucket) override {
    if (fail_at > 0 && ++num_filled == fail_at) return absl::InternalError("the device failed");
    std::vector<std::byte>& buffer = buffers_[place];
    buffer.clear();
    for (const BucketSlice& slice : bucket.slices) {
      const auto from = tensors_[static_cast<size_t>(slice.tensor)].bytes.subspan(
          static_cast<size_t>(slice.offset), static_cast<size_t>(slice.length));
      buffer.insert(buffer.end(), from.begin(), from.end());
    }
    return std::span(buffer);
  }

  int fail_at = 0, num_filled = 0;  // 0: never

 private:
  const std::vector<HostTensor> tensors_;
  std::array<std::vector<std::byte>, 2> buffers_;
};

// From the memory in which the trainer makes the weights to the memory of the engine.
class OnDevicePushTest : public ::testing::Test {
 protected:
  void Connect(const std::vector<Server*>& servers,
               PushTransport transport = PushTransport::kCollective) {
    trainer::WeightPublisherOptions options;
    options.transport = transport;
    options.max_attempts = 2;
    options.group.bucket_bytes = (1 << 16) + 3;  // not a multiple of the element size
    std::vector<std::string> addresses;
    for (const Server* const server : servers) addresses.push_back(server->address());
    publisher_.reset();
    pool_ = std::make_unique<ServerPool>(addresses);
    publisher_ = std::make_unique<WeightPublisher>(pool_.get(), "run", options);
    for (size_t i = 0; i < addresses.size(); ++i) {
      ASSERT_THAT(publisher_->Claim(static_cast<int>(i)), IsOk());
    }
  }

  std::vector<ServerPush> Publish(int64_t version, const Weights& weights,
                                  const std::vector<int>& servers) {
    return Publish(version, weights, servers, std::make_shared<MadeBuckets>(weights));
  }
  std::vector<ServerPush> Publish(int64_t version, const Weights& weights,
                                  const std::vector<int>& servers,
                                  std::shared_ptr<trainer::BucketSource> source) {
    EXPECT_THAT(publisher_->SetWeights({version}, PresentAll(weights.tensors()), std::move(source)),
                IsOk());
    return publisher_->Publish(servers);
  }

  void ExpectDelivered(const ServerPush& push, bool on_device, bool over_group = true) {
    EXPECT_THAT(push.status, IsOk());
    EXPECT_EQ(push.on_device, on_device);
    EXPECT_EQ(push.over_group, over_group);
    EXPECT_EQ(push.digest, CombinedDigest(publisher_->digests()));
    EXPECT_THAT(publisher_->Verify(push.server), IsOk());
  }

  std::unique_ptr<ServerPool> pool_;
  std::unique_ptr<WeightPublisher> publisher_;
};

TEST_F(OnDevicePushTest, EveryVersionArrivesThereDenseAndIsProven) {
  Server first(-1), second(-1);
  Connect({&first, &second});
  Weights weights = Zeros();
  for (int64_t version = 1; version <= 3; ++version) {
    weights = Moved(weights, 40);
    for (const ServerPush& push : Publish(version, weights, {0, 1})) {
      ExpectDelivered(push, /*on_device=*/true);
      EXPECT_FALSE(push.is_delta);
      EXPECT_EQ(push.bytes, DenseBytes());
    }
  }
}

TEST_F(OnDevicePushTest, AFlippedBitIsFoundThereAndTheServerGetsTheStreamInTheSamePush) {
  Server sound(-1), damaged(2);
  Connect({&sound, &damaged});
  const auto pushes = Publish(1, Moved(Zeros(), 7), {0, 1});
  ExpectDelivered(pushes[0], /*on_device=*/true);
  ExpectDelivered(pushes[1], /*on_device=*/false, /*over_group=*/false);
}

// If one server uses host memory, all get their buckets there.
TEST_F(OnDevicePushTest, TheGroupGoesThroughTheHostWhereOneServerHasNoPlaceOnADevice) {
  Server able(-1), unable;
  Connect({&able, &unable});
  Weights weights = Moved(Zeros(), 7);
  for (const ServerPush& push : Publish(1, weights, {0, 1})) ExpectDelivered(push, false);
  weights = Moved(weights, 7);
  // The choice is made per group, so without that server it is different.
  ExpectDelivered(Publish(2, weights, {0})[0], /*on_device=*/true);
  weights = Moved(weights, 7);
  for (const ServerPush& push : Publish(3, weights, {0, 1})) ExpectDelivered(push, false);
}

TEST_F(OnDevicePushTest, ATrainerWithoutADeviceAndTheStreamGoThroughTheHost) {
  Server server(-1);
  Connect({&server});
  ExpectDelivered(Publish(1, Moved(Zeros(), 7), {0}, nullptr)[0], false);
  Connect({&server}, PushTransport::kStream);
  ExpectDelivered(Publish(2, Moved(Zeros(), 5), {0})[0], false, /*over_group=*/false);
}

TEST_F(OnDevicePushTest, AServerThatLeftDoesNotKeepTheOthersFromTheirWeights) {
  Server first(-1), second(-1), third(-1);
  Connect({&first, &second, &third});
  Weights weights = Moved(Zeros(), 7);
  for (const ServerPush& push : Publish(1, weights, {0, 1, 2})) ExpectDelivered(push, true);
  second.Stop();
  weights = Moved(weights, 7);
  const auto pushes = Publish(2, weights, {0, 1, 2});
  EXPECT_EQ(pushes[1].status.code(), absl::StatusCode::kUnavailable) << pushes[1].status;
  for (const size_t left : {size_t{0}, size_t{2}}) ExpectDelivered(pushes[left], true);
}

TEST_F(OnDevicePushTest, ADeviceThatFailsInMidPushLeavesTheStream) {
  Server first(-1), second(-1);
  Connect({&first, &second});
  Weights weights = Moved(Zeros(), 7);
  const auto source = std::make_shared<MadeBuckets>(weights);
  source->fail_at = 3;
  for (const ServerPush& push : Publish(1, weights, {0, 1}, source)) {
    ExpectDelivered(push, /*on_device=*/false, /*over_group=*/false);
  }
  weights = Moved(weights, 7);
  for (const ServerPush& push : Publish(2, weights, {0, 1})) ExpectDelivered(push, true);
}

// The device made other bytes than the cast on the host, from which the digests are.
TEST_F(OnDevicePushTest, BucketsOfOtherWeightsThanThePublishedOnesAreNotServed) {
  Server server(-1);
  Connect({&server});
  const Weights weights = Moved(Zeros(), 7);
  ExpectDelivered(Publish(1, weights, {0}, std::make_shared<MadeBuckets>(Moved(weights, 1000)))[0],
                  /*on_device=*/false, /*over_group=*/false);
}

}  // namespace
}  // namespace tandem
