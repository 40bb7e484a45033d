#include "common/weights/tensor_delta.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>

#include "absl/strings/escaping.h"
#include "tests/support/status_matchers.h"

namespace tandem {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;

template <typename Word>
HostTensor Tensor(const std::vector<Word>& values) {
  auto owner = std::make_shared<std::vector<Word>>(values);
  return {.spec = {"w",
                   sizeof(Word) == 1   ? DType::kU8
                   : sizeof(Word) == 2 ? DType::kBF16
                                       : DType::kF32,
                   {static_cast<int64_t>(values.size())}},
          .bytes = std::as_bytes(std::span(*owner)),
          .owner = owner};
}

std::string Hex(std::span<const std::byte> bytes) {
  return absl::BytesToHexString({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

std::vector<std::byte> Bytes(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

std::vector<std::byte> Copy(const HostTensor& tensor) {
  return {tensor.bytes.begin(), tensor.bytes.end()};
}

// Makes, adds and subtracts a delta between random tensors in which `share` of the elements
// changed.
template <typename Word>
TensorDelta RoundTrip(int64_t count, double share, Word largest_step) {
  std::mt19937 random(17);
  std::vector<Word> before(static_cast<size_t>(count));
  for (Word& word : before) word = static_cast<Word>(random());
  std::vector<Word> after = before;
  for (Word& word : after) {
    if (std::generate_canonical<double, 32>(random) >= share) continue;
    word = static_cast<Word>(word + 1 + random() % largest_step);
  }
  const HostTensor base = Tensor(before), tensor = Tensor(after);
  const TensorDelta delta = MakeDelta(base, tensor);
  if (delta.encoding == TensorEncoding::kDense) return delta;
  EXPECT_LT(delta.bytes.size(), tensor.bytes.size());
  EXPECT_THAT(CheckDelta(delta.encoding, tensor.spec, delta.bytes), IsOk());
  std::vector<std::byte> bytes = Copy(base);
  AddDelta(delta.encoding, tensor.spec, delta.bytes, bytes);
  EXPECT_EQ(bytes, Copy(tensor));
  SubtractDelta(delta.encoding, tensor.spec, delta.bytes, bytes);
  EXPECT_EQ(bytes, Copy(base));
  return delta;
}

TEST(TensorDeltaTest, FewChangesTravelAsGapsAndSteps) {
  std::vector<uint16_t> before(300, 0x3f80), after = before;
  after[2] = 0x3f81;    // gap 2, step +1 -> 2
  after[3] = 0x3f7f;    // gap 0, step -1 -> 1
  after[204] = 0x3fc8;  // gap 200 = c8 01, step 72 -> 144 = 90 01
  const TensorDelta delta = MakeDelta(Tensor(before), Tensor(after));
  EXPECT_EQ(delta.encoding, TensorEncoding::kGaps);
  EXPECT_EQ(delta.num_changed, 3);
  EXPECT_EQ(Hex(delta.bytes), "02020001c8019001");
}

TEST(TensorDeltaTest, LargeStepsOfManyElementsTravelBehindAMask) {
  // Three of four changed by 0x4000: four bytes each as gap and step, two behind the mask.
  std::vector<uint16_t> before(32, 1), after = before;
  for (size_t i = 0; i < after.size(); ++i) after[i] += i % 4 == 3 ? 0 : 0x4000;
  const TensorDelta delta = MakeDelta(Tensor(before), Tensor(after));
  EXPECT_EQ(delta.encoding, TensorEncoding::kMask);
  EXPECT_EQ(delta.bytes.size(), 4u + 24 * 2);
  EXPECT_EQ(Hex(delta.bytes).substr(0, 16), "7777777700400040");
}

TEST(TensorDeltaTest, NoChangeTakesNoBytes) {
  const HostTensor tensor = Tensor<uint16_t>({1, 2, 3});
  const TensorDelta delta = MakeDelta(tensor, tensor);
  EXPECT_EQ(delta.encoding, TensorEncoding::kGaps);
  EXPECT_TRUE(delta.bytes.empty());
}

TEST(TensorDeltaTest, WhatChangedThroughoutOrHasAnotherShapeTravelsDense) {
  EXPECT_EQ(RoundTrip<uint16_t>(1000, 1, 0x8000).encoding, TensorEncoding::kDense);
  EXPECT_EQ(RoundTrip<uint32_t>(1000, 1, 1u << 31).encoding, TensorEncoding::kDense);
  EXPECT_EQ(MakeDelta(Tensor<uint16_t>({1, 2}), Tensor<uint16_t>({1, 2, 3})).encoding,
            TensorEncoding::kDense);
}

TEST(TensorDeltaTest, EveryDeltaAddsUpAndCanBeTakenBack) {
  for (const int64_t count : {1, 7, 8, 9, 64, 1001, 100'003}) {
    for (const double share : {0.0, 0.001, 0.03, 0.2, 0.6}) {
      for (const uint16_t step : {1, 3, 200, 40'000}) {
        RoundTrip<uint8_t>(count, share, static_cast<uint8_t>(1 + step % 250));
        RoundTrip<uint16_t>(count, share, step);
        RoundTrip<uint32_t>(count, share, step * 50'000u);
      }
    }
  }
}

TEST(TensorDeltaTest, ThreePercentOfBf16ByOneStepTakeAFifteenthOfTheBytesOrLess) {
  const TensorDelta delta = RoundTrip<uint16_t>(1 << 20, 0.03, 1);
  EXPECT_LT(static_cast<double>(delta.bytes.size()), (2 << 20) / 15.0);
}

TEST(TensorDeltaTest, DamagedDeltasAreRefused) {
  const TensorSpec spec = {"w", DType::kBF16, {10}};
  const auto check = [&](TensorEncoding encoding, std::initializer_list<int> bytes) {
    return CheckDelta(encoding, spec, Bytes(bytes));
  };
  constexpr auto kGaps = TensorEncoding::kGaps, kMask = TensorEncoding::kMask;
  EXPECT_THAT(check(kGaps, {9, 2}), IsOk());
  EXPECT_THAT(check(kGaps, {10, 2}), FailsWith(absl::StatusCode::kDataLoss, "past the last"));
  EXPECT_THAT(check(kGaps, {9, 2, 0, 2}), FailsWith(absl::StatusCode::kDataLoss, "past the last"));
  EXPECT_THAT(check(kGaps, {9}), FailsWith(absl::StatusCode::kDataLoss, "within a number"));
  EXPECT_THAT(check(kGaps, {0x89}), FailsWith(absl::StatusCode::kDataLoss, "within a number"));
  EXPECT_THAT(check(kGaps, {0, 0x80, 0x80, 0x04}),
              FailsWith(absl::StatusCode::kDataLoss, "a difference too large"));
  EXPECT_THAT(check(kGaps, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02, 2}),
              FailsWith(absl::StatusCode::kDataLoss, "within a number"));
  EXPECT_THAT(check(kGaps, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 2}),
              FailsWith(absl::StatusCode::kDataLoss, "past the last"));
  EXPECT_THAT(check(kMask, {1, 0, 5, 0}), IsOk());
  EXPECT_THAT(check(kMask, {1}), FailsWith(absl::StatusCode::kDataLoss, "shorter than its mask"));
  EXPECT_THAT(check(kMask, {1, 4, 5, 0, 5, 0}),
              FailsWith(absl::StatusCode::kDataLoss, "past the last"));
  EXPECT_THAT(check(kMask, {3, 0, 5, 0}), FailsWith(absl::StatusCode::kDataLoss, "has fewer"));
  EXPECT_THAT(check(kMask, {1, 0, 5, 0, 6}), FailsWith(absl::StatusCode::kDataLoss, "has more"));
  EXPECT_THAT(check(TensorEncoding::kDense, {}),
              FailsWith(absl::StatusCode::kInvalidArgument, "no delta of w BF16 [10]"));
}

}  // namespace
}  // namespace tandem
