#include "common/process/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/temp_dir.h"

namespace tandem {
namespace {

using ::testing::Optional;

class AvailableMemoryTest : public ::testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path whole = root_.path() + path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text;
  }
  std::optional<int64_t> Available() const { return AvailableMemoryBytes(root_.path()); }

  const testing::TempDir root_;
};

TEST_F(AvailableMemoryTest, SaysNothingWhereNothingIsKnown) {
  EXPECT_EQ(Available(), std::nullopt);
}

TEST_F(AvailableMemoryTest, IsTheMachinesWithoutALimit) {
  Write("/proc/meminfo", "MemTotal:  900 kB\nMemAvailable:   300 kB\nCached: 5 kB\n");
  Write("/proc/self/cgroup", "0::/user\n");
  Write("/sys/fs/cgroup/user/memory.max", "max\n");
  Write("/sys/fs/cgroup/user/memory.current", "100000\n");
  EXPECT_THAT(Available(), Optional(300 * 1024));
}

TEST_F(AvailableMemoryTest, IsWhatTheTightestCgroupLeavesWithItsPageCache) {
  Write("/proc/meminfo", "MemAvailable:   1000 kB\n");
  Write("/proc/self/cgroup", "0::/pod/container\n");
  Write("/sys/fs/cgroup/pod/container/memory.max", "900000\n");
  Write("/sys/fs/cgroup/pod/container/memory.current", "100000\n");
  Write("/sys/fs/cgroup/pod/memory.max", "500000\n");
  Write("/sys/fs/cgroup/pod/memory.current", "400000\n");
  Write("/sys/fs/cgroup/pod/memory.stat",
        "anon 300000\nactive_file 20000\ninactive_file 30000\nslab_reclaimable 1000\nfile 60000\n");
  EXPECT_THAT(Available(), Optional(100000 + 51000));
}

TEST_F(AvailableMemoryTest, ReadsTheFirstVersionOfCgroupsToo) {
  Write("/proc/meminfo", "MemAvailable:   1000 kB\n");
  Write("/proc/self/cgroup", "5:cpu:/a\n4:cpuset,memory:/b\n");
  Write("/sys/fs/cgroup/memory/b/memory.limit_in_bytes", "700000\n");
  Write("/sys/fs/cgroup/memory/b/memory.usage_in_bytes", "600000\n");
  Write("/sys/fs/cgroup/memory/b/memory.stat", "inactive_file 1\ntotal_inactive_file 2000\n");
  EXPECT_THAT(Available(), Optional(102000));
}

// "No limit" of version 1 is the largest multiple of a page; such a group once left 0 bytes.
TEST_F(AvailableMemoryTest, AGroupWithoutALimitThatCountsMoreFilesThanItUsesLeavesTheMachines) {
  Write("/proc/meminfo", "MemAvailable:   1000 kB\n");
  Write("/proc/self/cgroup", "4:memory:/b\n");
  Write("/sys/fs/cgroup/memory/b/memory.limit_in_bytes", "9223372036854771712\n");
  Write("/sys/fs/cgroup/memory/b/memory.usage_in_bytes", "600000\n");
  Write("/sys/fs/cgroup/memory/b/memory.stat", "total_inactive_file 700000\n");
  EXPECT_THAT(Available(), Optional(1000 * 1024));
}

// In a container without a cgroup namespace, the path is the host's and the mount is the
// container's.
TEST_F(AvailableMemoryTest, TakesTheMountsOwnLimitWhereThePathIsNotToBeSeen) {
  Write("/proc/meminfo", "MemAvailable:   1000 kB\n");
  Write("/proc/self/cgroup", "4:memory:/docker/0123\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "300000\n");
  Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "100000\n");
  EXPECT_THAT(Available(), Optional(200000));
}

TEST_F(AvailableMemoryTest, AnOverdrawnCgroupLeavesNothing) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/memory.max", "100\n");
  Write("/sys/fs/cgroup/memory.current", "150\n");
  EXPECT_THAT(Available(), Optional(0));
}

TEST(AvailableMemoryOfThisMachine, IsKnownAndNoWhim) {
  const auto available = AvailableMemoryBytes();
  ASSERT_TRUE(available.has_value());
  EXPECT_GT(*available, int64_t{1} << 20);
  EXPECT_LT(*available, int64_t{1} << 50);
}

}  // namespace
}  // namespace tandem
