#include "common/tensor/aligned_buffer.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tandem {
namespace {

// The number of the buffer's pages that are resident.
int64_t ResidentPages(AlignedBuffer& buffer) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  std::vector<unsigned char> resident(static_cast<size_t>((buffer.size() + page - 1) / page));
  EXPECT_EQ(mincore(buffer.as<char>(), static_cast<size_t>(buffer.size()), resident.data()), 0);
  return std::count_if(resident.begin(), resident.end(), [](unsigned char c) { return c & 1; });
}

TEST(AlignedBuffer, CommitTakesEveryPageAndLeavesZeros) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  AlignedBuffer buffer(100 * page + 1);
  EXPECT_EQ(ResidentPages(buffer), 0);
  buffer.Commit();
  EXPECT_EQ(ResidentPages(buffer), 101);
  EXPECT_TRUE(std::all_of(buffer.as<char>(), buffer.as<char>() + buffer.size(),
                          [](char c) { return c == 0; }));
}

TEST(AlignedBuffer, CommitKeepsWhatIsWritten) {
  AlignedBuffer buffer(10000);
  buffer.as<char>()[9999] = 7;
  buffer.Commit();
  EXPECT_EQ(buffer.as<char>()[9999], 7);
}

TEST(AlignedBuffer, AnEmptyOneHasNothingToCommit) {
  AlignedBuffer buffer;
  buffer.Commit();
  EXPECT_EQ(buffer.size(), 0);
}

}  // namespace
}  // namespace tandem
