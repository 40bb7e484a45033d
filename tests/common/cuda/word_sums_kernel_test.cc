// The device computes the same digest as the host, bit for bit.
#include "common/cuda/kernels.h"

#include <gtest/gtest.h>

#include "common/weights/digest.h"
#include "tests/support/device/device_memory.h"

namespace tandem::cuda {
namespace {

std::vector<uint8_t> Noise(size_t size) {
  std::mt19937 random(5);
  std::vector<uint8_t> bytes(size);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

WordSums OnHost(const std::vector<uint8_t>& bytes) {
  return SumWords(std::as_bytes(std::span(bytes)));
}

// `lead` is the distance in bytes from an address that is aligned for words.
WordSums OnDevice(std::vector<uint8_t> bytes, size_t lead = 0) {
  const auto size = static_cast<int64_t>(bytes.size());
  bytes.insert(bytes.begin(), lead, uint8_t{255});
  const DeviceArray<uint8_t> on_device(bytes);
  const DeviceArray<uint64_t> sums(2);
  RunWordSums({.bytes = on_device.data() + lead, .num_bytes = size, .sums = sums.data()}, nullptr);
  return {sums.Read()[0], sums.Read()[1]};
}

// No bytes, a part of a word, full and incomplete blocks, and more words than all threads together.
TEST(WordSumsKernel, GivesTheSumsOfTheHost) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{8}, size_t{14}, size_t{2048}, size_t{5001},
                            size_t{1024} * 256 * 8 + 4099}) {
    SCOPED_TRACE(size);
    const std::vector<uint8_t> bytes = Noise(size);
    EXPECT_EQ(OnDevice(bytes), OnHost(bytes));
  }
}

TEST(WordSumsKernel, TakesBytesAtAnyAddress) {
  const std::vector<uint8_t> bytes = Noise(3001);
  for (const size_t lead : {size_t{1}, size_t{2}, size_t{4}, size_t{6}}) {
    SCOPED_TRACE(lead);
    EXPECT_EQ(OnDevice(bytes, lead), OnHost(bytes));
  }
}

TEST(WordSumsKernel, AddsToTheSumsThatAreThere) {
  const std::vector<uint8_t> bytes = Noise(100);
  const DeviceArray<uint8_t> on_device(bytes);
  const DeviceArray<uint64_t> sums(std::vector<uint64_t>{1, ~uint64_t{0}});
  RunWordSums({.bytes = on_device.data(), .num_bytes = 100, .sums = sums.data()}, nullptr);
  EXPECT_EQ(sums.Read()[0], OnHost(bytes).first + 1);
  EXPECT_EQ(sums.Read()[1], OnHost(bytes).second - 1);
}

TEST(WordSumsKernel, AFlippedBitShows) {
  std::vector<uint8_t> bytes = Noise(5001);
  const WordSums whole = OnDevice(bytes);
  bytes[4321] ^= 16;
  EXPECT_NE(OnDevice(bytes).first, whole.first);
  EXPECT_NE(OnDevice(bytes).second, whole.second);
}

}  // namespace
}  // namespace tandem::cuda
