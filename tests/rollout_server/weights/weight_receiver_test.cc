#include "rollout_server/weights/weight_receiver.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>

#include "tests/rollout_server/memory_arrival.h"
#include "tests/support/status_matchers.h"

namespace tandem::rollout {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;

// Keeps what was installed as text.
class MemorySink : public WeightSink {
 public:
  absl::StatusOr<std::unique_ptr<StagedWeights>> Stage(std::vector<HostTensor> tensors) override {
    auto staged = std::make_unique<testing::TextWeights>();
    for (const HostTensor& tensor : tensors) staged->Add(tensor.bytes);
    return staged;
  }
  absl::StatusOr<std::unique_ptr<StagedWeights>> StageAdapter(const AdapterFactors&) override {
    return absl::UnimplementedError("it merges");
  }
  bool unmerged() const override { return false; }
  std::optional<Device> arrival_memory() const override { return Device::kCpu; }
  absl::StatusOr<std::unique_ptr<ArrivingWeights>> Arrive() override {
    ++num_arrivals;
    return std::make_unique<testing::MemoryArrival>(
        std::vector<TensorSpec>{{"a", DType::kF32, {2}}, {"b", DType::kBF16, {3}}}, flip_in);
  }
  absl::StatusOr<double> Install(std::unique_ptr<StagedWeights> staged,
                                 WeightVersion version) override {
    if (!refusal.ok()) return refusal;
    served = static_cast<testing::TextWeights&>(*staged).tensors;
    served_version = version;
    ++num_installs;
    return 0.25;
  }

  absl::Status refusal;
  int flip_in = -1;
  int num_arrivals = 0;
  std::vector<std::string> served;
  WeightVersion served_version;
  int num_installs = 0;
};

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// The model has tensors a (8 bytes) and b (6 bytes); the manifest names b first.
class WeightReceiverTest : public ::testing::Test {
 protected:
  WeightReceiverTest() { receiver_.StartEpoch(1); }

  static DigestMap Digests(std::string_view a, std::string_view b) {
    return {{"a", Digest128(Bytes(a))}, {"b", Digest128(Bytes(b))}};
  }

  void PushAll(int64_t version, std::string_view a, std::string_view b) {
    ASSERT_THAT(receiver_.Begin({version}, {b_, a_}), IsOk());
    ASSERT_THAT(receiver_.Receive({version}, 0, 0, Bytes(b)), IsOk());
    ASSERT_THAT(receiver_.Receive({version}, 1, 0, Bytes(a)), IsOk());
  }

  const TensorSpec a_{"a", DType::kF32, {2}};
  const TensorSpec b_{"b", DType::kBF16, {3}};
  MemorySink sink_;
  WeightReceiver receiver_{&sink_, {a_, b_}, {{0}, 0, {{"a", "loaded"}, {"b", "loaded"}}}};
};

TEST_F(WeightReceiverTest, InstallsWhatArrivedInTheEnginesOrder) {
  PushAll(1, "aaaaaaaa", "bbbbbb");
  const auto report = receiver_.Commit({1}, Digests("aaaaaaaa", "bbbbbb"));
  ASSERT_THAT(report, IsOk());
  EXPECT_THAT(sink_.served, ::testing::ElementsAre("aaaaaaaa", "bbbbbb"));
  EXPECT_EQ(report->pause_seconds, 0.25);
  EXPECT_EQ(receiver_.live()->version.value, 1);
  EXPECT_EQ(receiver_.live()->epoch, 1);
  EXPECT_EQ(receiver_.live()->digests, Digests("aaaaaaaa", "bbbbbb"));
}

// A server that quantises also takes tensors as it stores them: a as 4 bytes.
TEST_F(WeightReceiverTest, TakesStoredRowsAndGoesFromOneKindToTheOther) {
  const TensorSpec stored_a{"a", DType::kU8, {1, 4}};
  WeightReceiver receiver(&sink_, {a_, b_}, {{0}, 0, {{"a", "loaded"}, {"b", "loaded"}}}, nullptr,
                          {stored_a, b_});
  receiver.StartEpoch(1);
  ASSERT_THAT(receiver.Reserve(), IsOk());
  const auto push = [&](int64_t version, const TensorSpec& a, std::string_view bytes,
                        const std::optional<WeightReceiver::Delta>& delta = std::nullopt) {
    const auto begun = receiver.Begin({version}, {a, b_}, delta);
    if (!begun.ok()) return begun.status();
    EXPECT_THAT(receiver.Receive({version}, 0, 0, Bytes(bytes)), IsOk());
    EXPECT_THAT(receiver.Receive({version}, 1, 0, Bytes("bbbbbb")), IsOk());
    const std::string_view result = delta ? "stpr" : bytes;
    return receiver.Commit({version}, Digests(result, "bbbbbb")).status();
  };
  ASSERT_THAT(push(1, stored_a, "stor"), IsOk());
  EXPECT_THAT(sink_.served, ::testing::ElementsAre("stor", "bbbbbb"));
  // A delta over stored bytes: after two unchanged ones, one more by 1 (zigzag 2).
  const WeightReceiver::Delta delta = {{1},
                                       {{TensorEncoding::kGaps, 2}, {TensorEncoding::kDense, 6}}};
  EXPECT_THAT(push(2, a_, "aaaaaaaa", delta),
              FailsWith(absl::StatusCode::kFailedPrecondition, "its bytes are not held"));
  ASSERT_THAT(push(2, stored_a, std::string_view("\x02\x02", 2), delta), IsOk());
  EXPECT_THAT(sink_.served, ::testing::ElementsAre("stpr", "bbbbbb"));
  ASSERT_THAT(push(3, a_, "aaaaaaaa"), IsOk());
  EXPECT_THAT(sink_.served, ::testing::ElementsAre("aaaaaaaa", "bbbbbb"));
  ASSERT_THAT(push(4, stored_a, "more"), IsOk());
  EXPECT_THAT(sink_.served, ::testing::ElementsAre("more", "bbbbbb"));
  EXPECT_THAT(receiver.Begin({5}, {{"a", DType::kU8, {1, 5}}, b_}),
              FailsWith(absl::StatusCode::kInvalidArgument, "U8 [1, 5] where"));
  EXPECT_THAT(receiver_.Begin({1}, {stored_a, b_}),
              FailsWith(absl::StatusCode::kInvalidArgument, "U8 [1, 4] where"))
      << "a server that does not quantise";
}

// The memory that this process has now.
int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST_F(WeightReceiverTest, TheMemoryOfAPushIsTakenByReserveAndUsedByTheFirstOne) {
  constexpr int64_t kBytes = int64_t{64} << 20;
  const TensorSpec large{"large", DType::kF32, {kBytes / 4}};
  const std::string arrives(kBytes, 'w');
  WeightReceiver receiver(&sink_, {large}, {{0}, 0, {{"large", "loaded"}}});
  receiver.StartEpoch(1);
  const int64_t before = ResidentBytes();
  ASSERT_THAT(receiver.Reserve(), IsOk());
  const int64_t reserved = ResidentBytes();
  EXPECT_GE(reserved - before, kBytes);
  ASSERT_THAT(receiver.Begin({1}, {large}), IsOk());
  ASSERT_THAT(receiver.Receive({1}, 0, 0, Bytes(arrives)), IsOk());
  EXPECT_LT(ResidentBytes() - reserved, kBytes / 2);
  ASSERT_THAT(receiver.Commit({1}, {{"large", Digest128(Bytes(arrives))}}), IsOk());
  EXPECT_EQ(sink_.served.at(0), arrives);
}

// Every request asks what is live, and a model has hundreds of digests.
TEST_F(WeightReceiverTest, AskingWhatIsLiveCopiesNothingAndACommitChangesNoAnswerThatWasGiven) {
  const auto before = receiver_.live();
  EXPECT_EQ(receiver_.live(), before) << "the same object";
  PushAll(1, "aaaaaaaa", "bbbbbb");
  ASSERT_THAT(receiver_.Commit({1}, Digests("aaaaaaaa", "bbbbbb")), IsOk());
  EXPECT_EQ(before->version.value, 0);
  EXPECT_EQ(before->digests.at("a"), "loaded");
  EXPECT_NE(receiver_.live(), before);
}

TEST_F(WeightReceiverTest, ChunksMayComeDoubledReorderedAndOverlapping) {
  EXPECT_EQ(*receiver_.Begin({1}, {b_, a_}), (std::vector<int64_t>{6, 8}));
  EXPECT_THAT(receiver_.Receive({1}, 1, 5, Bytes("fgh")), IsOk());
  EXPECT_THAT(receiver_.Receive({1}, 1, 0, Bytes("abc")), IsOk());
  EXPECT_THAT(receiver_.Receive({1}, 1, 0, Bytes("abc")), IsOk());
  EXPECT_THAT(receiver_.Receive({1}, 1, 2, Bytes("cdef")), IsOk());
  EXPECT_THAT(receiver_.Receive({1}, 0, 0, Bytes("bbbbbb")), IsOk());
  EXPECT_THAT(receiver_.Commit({1}, Digests("abcdefgh", "bbbbbb")), IsOk());
  EXPECT_EQ(sink_.served[0], "abcdefgh");
}

TEST_F(WeightReceiverTest, AMissingChunkIsDataLossNamingTheTensorAndTheLiveWeightsStay) {
  ASSERT_THAT(receiver_.Begin({1}, {a_, b_}), IsOk());
  EXPECT_THAT(receiver_.Receive({1}, 0, 0, Bytes("aaaaaaaa")), IsOk());
  EXPECT_THAT(receiver_.Receive({1}, 1, 0, Bytes("bb")), IsOk());
  EXPECT_THAT(receiver_.Receive({1}, 1, 0, Bytes("bb")), IsOk());
  EXPECT_THAT(receiver_.Commit({1}, Digests("aaaaaaaa", "bbbbbb")),
              FailsWith(absl::StatusCode::kDataLoss, "4 of 6 bytes of b did not arrive"));
  EXPECT_EQ(sink_.num_installs, 0);
  EXPECT_EQ(receiver_.live()->version.value, 0);
  PushAll(1, "aaaaaaaa", "bbbbbb");
  EXPECT_THAT(receiver_.Commit({1}, Digests("aaaaaaaa", "bbbbbb")), IsOk());
}

TEST_F(WeightReceiverTest, StaleBytesOfAFailedPushNeverCountAsArrived) {
  PushAll(1, "aaaaaaaa", "bbbbbb");
  ASSERT_THAT(receiver_.Commit({1}, Digests("aaaaaaaa", "bbbbbb")), IsOk());
  ASSERT_THAT(receiver_.Begin({2}, {a_, b_}), IsOk());
  EXPECT_THAT(receiver_.Commit({2}, Digests("aaaaaaaa", "bbbbbb")),
              FailsWith(absl::StatusCode::kDataLoss, "8 of 8 bytes of a"));
}

TEST_F(WeightReceiverTest, AFlippedByteIsDataLossNamingTheTensor) {
  PushAll(1, "aaaaaaaa", "bbbbbX");
  EXPECT_THAT(receiver_.Commit({1}, Digests("aaaaaaaa", "bbbbbb")),
              FailsWith(absl::StatusCode::kDataLoss, "digest of b is"));
  EXPECT_EQ(receiver_.live()->digests.at("b"), "loaded");
  EXPECT_THAT(receiver_.Commit({1}, Digests("aaaaaaaa", "bbbbbX")),
              FailsWith(absl::StatusCode::kFailedPrecondition, "no update of version 1"));
}

TEST_F(WeightReceiverTest, ADigestThatWasNotGivenIsDataLoss) {
  PushAll(1, "aaaaaaaa", "bbbbbb");
  EXPECT_THAT(receiver_.Commit({1}, {{"a", Digest128(Bytes("aaaaaaaa"))}}),
              FailsWith(absl::StatusCode::kDataLoss, "no digest was given for b"));
}

TEST_F(WeightReceiverTest, TheManifestMustBeTheServedModel) {
  EXPECT_THAT(receiver_.Begin({1}, {a_}),
              FailsWith(absl::StatusCode::kInvalidArgument, "missing tensor 'b'"));
  EXPECT_THAT(receiver_.Begin({1}, {a_, b_, {"lm_head.weight", DType::kF32, {2}}}),
              FailsWith(absl::StatusCode::kInvalidArgument, "unknown tensor 'lm_head.weight'"));
  EXPECT_THAT(receiver_.Begin({1}, {a_, b_, a_}),
              FailsWith(absl::StatusCode::kInvalidArgument, "'a' comes twice"));
  EXPECT_THAT(receiver_.Begin({1}, {a_, {"b", DType::kBF16, {1, 3}}}),
              FailsWith(absl::StatusCode::kInvalidArgument, "BF16 [1, 3] where b BF16 [3]"));
  EXPECT_THAT(receiver_.Begin({1}, {{"a", DType::kBF16, {2}}, b_}),
              FailsWith(absl::StatusCode::kInvalidArgument, "BF16 [2] where a F32 [2]"));
}

TEST_F(WeightReceiverTest, AChunkOutsideItsTensorIsRefused) {
  ASSERT_THAT(receiver_.Begin({1}, {a_, b_}), IsOk());
  EXPECT_THAT(receiver_.Receive({1}, 0, 6, Bytes("abc")),
              FailsWith(absl::StatusCode::kOutOfRange, "3 bytes at 6 ends past the 8 bytes of a"));
  EXPECT_THAT(receiver_.Receive({1}, 0, -1, Bytes("abc")),
              FailsWith(absl::StatusCode::kOutOfRange, "at -1"));
  EXPECT_THAT(receiver_.Receive({1}, 0, INT64_MAX, Bytes("abc")),
              FailsWith(absl::StatusCode::kOutOfRange, "ends past"));
  EXPECT_THAT(receiver_.Receive({1}, 2, 0, Bytes("abc")),
              FailsWith(absl::StatusCode::kOutOfRange, "tensor 2 of 2"));
  EXPECT_THAT(receiver_.Receive({2}, 0, 0, Bytes("abc")),
              FailsWith(absl::StatusCode::kFailedPrecondition, "no update of version 2"));
}

TEST_F(WeightReceiverTest, ADoubledCommitInstallsOnce) {
  PushAll(1, "aaaaaaaa", "bbbbbb");
  EXPECT_THAT(receiver_.Commit({1}, Digests("aaaaaaaa", "bbbbbb")), IsOk());
  const auto again = receiver_.Commit({1}, Digests("aaaaaaaa", "bbbbbb"));
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(again->live.version.value, 1);
  EXPECT_EQ(sink_.num_installs, 1);
  EXPECT_THAT(receiver_.Commit({1}, Digests("xxxxxxxx", "bbbbbb")),
              FailsWith(absl::StatusCode::kFailedPrecondition, "no update of version 1"));
}

TEST_F(WeightReceiverTest, VersionsRiseWithinAnEpochAndMayStartAnewInTheNext) {
  PushAll(5, "aaaaaaaa", "bbbbbb");
  ASSERT_THAT(receiver_.Commit({5}, Digests("aaaaaaaa", "bbbbbb")), IsOk());
  EXPECT_THAT(receiver_.Begin({5}, {a_, b_}),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        "version 5 is not newer than the live version 5 of epoch 1"));
  receiver_.StartEpoch(2);
  PushAll(3, "cccccccc", "dddddd");
  EXPECT_THAT(receiver_.Commit({3}, Digests("cccccccc", "dddddd")), IsOk());
  EXPECT_EQ(receiver_.live()->version.value, 3);
  EXPECT_EQ(receiver_.live()->epoch, 2);
  EXPECT_THAT(receiver_.Begin({2}, {a_, b_}),
              FailsWith(absl::StatusCode::kFailedPrecondition, "not newer"));
}

TEST_F(WeightReceiverTest, AnAbortedPushCanBePushedAgain) {
  PushAll(1, "aaaaaaaa", "bbbbbb");
  EXPECT_EQ(receiver_.staged_version().value, 1);
  EXPECT_FALSE(receiver_.Abort({2}));
  EXPECT_TRUE(receiver_.Abort({1}));
  EXPECT_FALSE(receiver_.Abort({1}));
  EXPECT_THAT(receiver_.Commit({1}, Digests("aaaaaaaa", "bbbbbb")),
              FailsWith(absl::StatusCode::kFailedPrecondition, "no update"));
  PushAll(1, "aaaaaaaa", "bbbbbb");
  EXPECT_THAT(receiver_.Commit({1}, Digests("aaaaaaaa", "bbbbbb")), IsOk());
}

TEST_F(WeightReceiverTest, ANewEpochDropsTheUpdateInProgress) {
  PushAll(1, "aaaaaaaa", "bbbbbb");
  receiver_.StartEpoch(2);
  EXPECT_THAT(receiver_.Commit({1}, Digests("aaaaaaaa", "bbbbbb")),
              FailsWith(absl::StatusCode::kFailedPrecondition, "no update"));
}

TEST_F(WeightReceiverTest, AnInstallThatFailsLeavesTheLiveVersion) {
  PushAll(1, "aaaaaaaa", "bbbbbb");
  sink_.refusal = absl::UnavailableError("the engine has stopped");
  EXPECT_THAT(receiver_.Commit({1}, Digests("aaaaaaaa", "bbbbbb")),
              FailsWith(absl::StatusCode::kUnavailable, "stopped"));
  EXPECT_EQ(receiver_.live()->version.value, 0);
}

// Deltas over version 1, "aaaaaaaa" and "bbbbbb".
class DeltaPushTest : public WeightReceiverTest {
 protected:
  DeltaPushTest() {
    PushAll(1, "aaaaaaaa", "bbbbbb");
    EXPECT_THAT(receiver_.Commit({1}, Digests("aaaaaaaa", "bbbbbb")), IsOk());
  }

  // Begins version 2 with deltas of these sizes for b and a, and hands them in.
  absl::Status Push(const std::string& b, const std::string& a,
                    TensorEncoding of_a = TensorEncoding::kGaps) {
    const WeightReceiver::Delta delta = {{1},
                                         {{TensorEncoding::kGaps, static_cast<int64_t>(b.size())},
                                          {of_a, static_cast<int64_t>(a.size())}}};
    const auto begun = receiver_.Begin({2}, {b_, a_}, delta);
    if (!begun.ok()) return begun.status();
    const absl::Status stored = receiver_.Receive({2}, 0, 0, Bytes(b));
    return stored.ok() ? receiver_.Receive({2}, 1, 0, Bytes(a)) : stored;
  }
};

TEST_F(DeltaPushTest, ChangedElementsBecomeTheNextVersion) {
  // b: skip two of its bf16, add one ("b" 0x62 -> "c"); a: nothing changed.
  ASSERT_THAT(Push(std::string("\x02\x02", 2), ""), IsOk());
  ASSERT_THAT(receiver_.Commit({2}, Digests("aaaaaaaa", "bbbbcb")), IsOk());
  EXPECT_THAT(sink_.served, ::testing::ElementsAre("aaaaaaaa", "bbbbcb"));
  EXPECT_EQ(receiver_.live()->version.value, 2);
  EXPECT_TRUE(receiver_.takes_delta());
}

TEST_F(DeltaPushTest, ATensorThatChangedThroughoutTravelsDenseBesideDeltas) {
  ASSERT_THAT(Push(std::string("\x02\x02", 2), "zzzzzzzz", TensorEncoding::kDense), IsOk());
  ASSERT_THAT(receiver_.Commit({2}, Digests("zzzzzzzz", "bbbbcb")), IsOk());
  EXPECT_THAT(sink_.served, ::testing::ElementsAre("zzzzzzzz", "bbbbcb"));
}

TEST_F(DeltaPushTest, AFailedDeltaLeavesTheBaseForTheNext) {
  const auto expect_base = [&] {
    EXPECT_EQ(receiver_.live()->version.value, 1);
    EXPECT_TRUE(receiver_.takes_delta());
  };
  // A wrong digest, after the delta was added; a dense tensor beside it.
  ASSERT_THAT(Push(std::string("\x02\x02", 2), "zzzzzzzz", TensorEncoding::kDense), IsOk());
  EXPECT_THAT(receiver_.Commit({2}, Digests("yyyyyyyy", "bbbbcb")),
              FailsWith(absl::StatusCode::kDataLoss, "digest of a is"));
  expect_base();
  // A delta that is none; one that did not arrive; one that was aborted; one the engine refused.
  ASSERT_THAT(Push(std::string("\x03\x02", 2), ""), IsOk());
  EXPECT_THAT(receiver_.Commit({2}, Digests("aaaaaaaa", "bbbbcb")),
              FailsWith(absl::StatusCode::kDataLoss, "the delta of b goes past the last element"));
  expect_base();
  ASSERT_THAT(receiver_.Begin({2}, {b_, a_},
                              {{{1}, {{TensorEncoding::kGaps, 2}, {TensorEncoding::kGaps, 0}}}}),
              IsOk());
  EXPECT_THAT(receiver_.Commit({2}, Digests("aaaaaaaa", "bbbbcb")),
              FailsWith(absl::StatusCode::kDataLoss, "2 of 2 bytes of b did not arrive"));
  ASSERT_THAT(Push(std::string("\x02\x02", 2), ""), IsOk());
  EXPECT_TRUE(receiver_.Abort({2}));
  expect_base();
  ASSERT_THAT(Push(std::string("\x02\x02", 2), ""), IsOk());
  sink_.refusal = absl::UnavailableError("the engine has stopped");
  EXPECT_THAT(receiver_.Commit({2}, Digests("aaaaaaaa", "bbbbcb")),
              FailsWith(absl::StatusCode::kUnavailable, "stopped"));
  expect_base();
  sink_.refusal = absl::OkStatus();
  ASSERT_THAT(Push(std::string("\x02\x02", 2), ""), IsOk());
  EXPECT_THAT(receiver_.Commit({2}, Digests("aaaaaaaa", "bbbbcb")), IsOk());
}

TEST_F(DeltaPushTest, ADeltaOverWhatIsNotHeldIsRefused) {
  const auto begin = [&](int64_t version, int64_t base, int64_t size) {
    return receiver_.Begin({version}, {b_, a_},
                           {{{base}, {{TensorEncoding::kGaps, size}, {TensorEncoding::kGaps, 0}}}});
  };
  EXPECT_THAT(begin(3, 2, 2),
              FailsWith(absl::StatusCode::kFailedPrecondition, "version 1 is live; push dense"));
  EXPECT_THAT(begin(2, 1, 7), FailsWith(absl::StatusCode::kInvalidArgument,
                                        "7 bytes, encoded gaps, for the 6 bytes of b"));
  EXPECT_THAT(receiver_.Begin({2}, {b_, a_}, {{{1}, {{TensorEncoding::kGaps, 2}}}}),
              FailsWith(absl::StatusCode::kInvalidArgument, "1 encodings for 2 tensors"));
  // A dense push writes over the bytes of the live version: if it fails they are gone.
  ASSERT_THAT(receiver_.Begin({2}, {b_, a_}), IsOk());
  EXPECT_FALSE(receiver_.takes_delta());
  EXPECT_TRUE(receiver_.Abort({2}));
  EXPECT_THAT(begin(2, 1, 2),
              FailsWith(absl::StatusCode::kFailedPrecondition, "its bytes are not held"));
}

// Pushes that arrive in the engine's own memory; here the host's (memory_arrival.h).
class ArrivingPushTest : public WeightReceiverTest {
 protected:
  static DigestMap Sums(std::string_view a, std::string_view b) {
    return {{"a", WordSumsDigest(Bytes(a))}, {"b", WordSumsDigest(Bytes(b))}};
  }

  // One bucket of all: the manifest names b first.
  absl::Status Send(int64_t version, std::string_view b_then_a) {
    const auto store = receiver_.Buckets({version});
    if (!store.ok()) return store.status();
    const auto buffer = (*store)->Buffer(0, std::ssize(b_then_a));
    EXPECT_THAT(buffer, IsOk());
    std::ranges::copy(Bytes(b_then_a), buffer->begin());
    for (const Bucket& bucket : PlanBuckets(std::vector<int64_t>{6, 8}, 14)) {
      std::span<const std::byte> bytes = *buffer;
      for (const BucketSlice& slice : bucket.slices) {
        const absl::Status stored =
            (*store)->Store(slice, bytes.first(static_cast<size_t>(slice.length)));
        if (!stored.ok()) return stored;
        bytes = bytes.subspan(static_cast<size_t>(slice.length));
      }
    }
    return absl::OkStatus();
  }

  void PushOnDevice(int64_t version) {
    ASSERT_THAT(receiver_.Begin({version}, {b_, a_}, std::nullopt, /*on_device=*/true), IsOk());
    ASSERT_THAT(Send(version, "bbbbbbaaaaaaaa"), IsOk());
  }
};

TEST_F(ArrivingPushTest, InstallsWhatArrivedAndTellsTheSumsThatWereMadeThere) {
  EXPECT_TRUE(receiver_.TakesOnDevice(Device::kCpu));
  EXPECT_FALSE(receiver_.TakesOnDevice(Device::kCuda)) << "a group there cannot write here";
  EXPECT_EQ(*receiver_.Begin({1}, {b_, a_}, std::nullopt, /*on_device=*/true),
            (std::vector<int64_t>{6, 8}));
  ASSERT_THAT(Send(1, "bbbbbbaaaaaaaa"), IsOk());
  const auto report =
      receiver_.Commit({1}, Digests("aaaaaaaa", "bbbbbb"), Sums("aaaaaaaa", "bbbbbb"));
  ASSERT_THAT(report, IsOk());
  EXPECT_THAT(sink_.served, ::testing::ElementsAre("aaaaaaaa", "bbbbbb"));
  EXPECT_EQ(report->live.digests, Digests("aaaaaaaa", "bbbbbb"));
  EXPECT_EQ(report->live.word_sums, Sums("aaaaaaaa", "bbbbbb"));
  EXPECT_EQ(receiver_.live()->word_sums, report->live.word_sums);
}

TEST_F(ArrivingPushTest, AFlippedBitIsDataLossNamingTheTensorAndTheLiveWeightsStay) {
  sink_.flip_in = 1;
  PushOnDevice(1);
  EXPECT_THAT(receiver_.Commit({1}, Digests("aaaaaaaa", "bbbbbb"), Sums("aaaaaaaa", "bbbbbb")),
              FailsWith(absl::StatusCode::kDataLoss, "word_sums of b is"));
  EXPECT_EQ(sink_.num_installs, 0);
  EXPECT_EQ(receiver_.live()->version.value, 0);
  sink_.flip_in = -1;
  PushOnDevice(1);
  EXPECT_THAT(receiver_.Commit({1}, Digests("aaaaaaaa", "bbbbbb"), Sums("aaaaaaaa", "bbbbbb")),
              IsOk());
}

TEST_F(ArrivingPushTest, BytesThatDidNotArriveAreDataLoss) {
  ASSERT_THAT(receiver_.Begin({1}, {b_, a_}, std::nullopt, /*on_device=*/true), IsOk());
  EXPECT_THAT(receiver_.Commit({1}, Digests("aaaaaaaa", "bbbbbb"), Sums("aaaaaaaa", "bbbbbb")),
              FailsWith(absl::StatusCode::kDataLoss, "word_sums of b is"));
}

TEST_F(ArrivingPushTest, WithoutSumsNothingIsProvenAndNothingInstalled) {
  PushOnDevice(1);
  EXPECT_THAT(receiver_.Commit({1}, Digests("aaaaaaaa", "bbbbbb")),
              FailsWith(absl::StatusCode::kDataLoss, "no word_sums was given for a"));
  EXPECT_EQ(sink_.num_installs, 0);
}

TEST_F(ArrivingPushTest, ChunksOfAStreamAreRefusedAndADenseBeginGoesThroughHostMemory) {
  ASSERT_THAT(receiver_.Begin({1}, {b_, a_}, std::nullopt, /*on_device=*/true), IsOk());
  EXPECT_THAT(receiver_.Receive({1}, 0, 0, Bytes("bbbbbb")),
              FailsWith(absl::StatusCode::kFailedPrecondition, "arrives on the device"));
  PushAll(1, "aaaaaaaa", "bbbbbb");
  ASSERT_THAT(receiver_.Commit({1}, Digests("aaaaaaaa", "bbbbbb")), IsOk());
  EXPECT_TRUE(receiver_.live()->word_sums.empty());
}

// Its bytes are not on the host: the next one is no delta over them.
TEST_F(ArrivingPushTest, NoDeltaIsTakenOverAVersionThatArrivedOnTheDevice) {
  PushAll(1, "aaaaaaaa", "bbbbbb");
  ASSERT_THAT(receiver_.Commit({1}, Digests("aaaaaaaa", "bbbbbb")), IsOk());
  EXPECT_TRUE(receiver_.takes_delta());
  PushOnDevice(2);
  EXPECT_TRUE(receiver_.takes_delta()) << "version 1 is live, and its bytes are held";
  ASSERT_THAT(receiver_.Commit({2}, Digests("aaaaaaaa", "bbbbbb"), Sums("aaaaaaaa", "bbbbbb")),
              IsOk());
  EXPECT_FALSE(receiver_.takes_delta());
}

// A dropped update's thread may still write: never into what is served, nor into the next one.
TEST_F(ArrivingPushTest, WhatComesForADroppedUpdateIsNeverServed) {
  ASSERT_THAT(receiver_.Begin({1}, {b_, a_}, std::nullopt, /*on_device=*/true), IsOk());
  const auto late = receiver_.Buckets({1});
  ASSERT_THAT(late, IsOk());
  EXPECT_TRUE(receiver_.Abort({1}));
  PushOnDevice(1);
  EXPECT_THAT((*late)->Store({.tensor = 0, .offset = 0, .length = 6}, Bytes("xxxxxx")), IsOk());
  ASSERT_THAT(receiver_.Commit({1}, Digests("aaaaaaaa", "bbbbbb"), Sums("aaaaaaaa", "bbbbbb")),
              IsOk());
  EXPECT_THAT(sink_.served, ::testing::ElementsAre("aaaaaaaa", "bbbbbb"));
  EXPECT_EQ(sink_.num_arrivals, 2);
}

TEST_F(ArrivingPushTest, NothingIsWrittenAfterTheSumsWereMade) {
  PushOnDevice(1);
  const auto late = receiver_.Buckets({1});
  ASSERT_THAT(late, IsOk());
  ASSERT_THAT(receiver_.Commit({1}, Digests("aaaaaaaa", "bbbbbb"), Sums("aaaaaaaa", "bbbbbb")),
              IsOk());
  EXPECT_THAT((*late)->Store({.tensor = 0, .offset = 0, .length = 6}, Bytes("xxxxxx")),
              FailsWith(absl::StatusCode::kFailedPrecondition, "sealed"));
}

}  // namespace
}  // namespace tandem::rollout
