#include "common/process/memory.h"

#include <sys/resource.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <sstream>
#include <string_view>

namespace tandem {
namespace {

// File names of the memory controllers of cgroup v1 and v2.
struct CgroupFiles {
  const char* limit;
  const char* usage;
  // Entries of memory.stat for pages of files, which the kernel can drop.
  std::initializer_list<std::string_view> droppable;
};
const CgroupFiles kVersion1 = {
    "memory.limit_in_bytes", "memory.usage_in_bytes", {"total_active_file", "total_inactive_file"}};
const CgroupFiles kVersion2 = {
    "memory.max", "memory.current", {"active_file", "inactive_file", "slab_reclaimable"}};

// The integer at the beginning of a file; nullopt if there is none (as in "max").
std::optional<int64_t> NumberIn(const std::string& path) {
  std::ifstream file(path);
  int64_t number = 0;
  if (!(file >> number)) return std::nullopt;
  return number;
}

// The sum of the numbers after these names, each at the beginning of a line.
int64_t SumOf(const std::string& path, std::initializer_list<std::string_view> names) {
  std::ifstream file(path);
  int64_t sum = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    int64_t number = 0;
    if (!(words >> name >> number)) continue;
    if (std::find(names.begin(), names.end(), name) != names.end()) sum += number;
  }
  return sum;
}

void TakeLeast(std::optional<int64_t>& least, std::optional<int64_t> other) {
  if (!other) return;
  const int64_t left = std::max<int64_t>(*other, 0);
  least = std::min(least.value_or(left), left);
}

std::optional<int64_t> LeftIn(const std::string& cgroup, const CgroupFiles& files) {
  const std::optional<int64_t> limit = NumberIn(cgroup + "/" + files.limit);
  const std::optional<int64_t> usage = NumberIn(cgroup + "/" + files.usage);
  if (!limit || !usage) return std::nullopt;
  // The kernel counts the two at different moments, so that a group that only reads files may seem to
  // hold more of them than it uses; added to "no limit", which is the largest number of version 1, the
  // difference would overflow.
  const int64_t held = *usage - SumOf(cgroup + "/memory.stat", files.droppable);
  return *limit - std::max<int64_t>(held, 0);
}

// The minimum that the cgroup at `path` below `mount`, and those above it, leave: each may have a
// limit. If the path is the host's and not visible from here, the mount itself is this container's
// cgroup.
void TakeLeastOfCgroups(const std::string& mount, std::string path, const CgroupFiles& files,
                        std::optional<int64_t>& least) {
  while (!path.empty() && path != "/") {
    TakeLeast(least, LeftIn(mount + path, files));
    path.resize(path.rfind('/'));
  }
  TakeLeast(least, LeftIn(mount, files));
}

}  // namespace

std::optional<int64_t> AvailableMemoryBytes(const std::string& root) {
  std::optional<int64_t> least;
  // "MemAvailable:   123 kB"
  const int64_t machine = SumOf(root + "/proc/meminfo", {"MemAvailable:"});
  if (machine > 0) least = machine * 1024;
  std::ifstream cgroups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(cgroups, line);) {  // "4:memory:/path" or "0::/path"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    const std::string mount = root + "/sys/fs/cgroup";
    if (controllers.empty()) {
      TakeLeastOfCgroups(mount, path, kVersion2, least);
    } else if (("," + controllers + ",").find(",memory,") != std::string::npos) {
      TakeLeastOfCgroups(mount + "/memory", path, kVersion1, least);
    }
  }
  return least;
}

int64_t PeakMemoryBytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

void KeepFreedMemory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the most that glibc accepts
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
#endif
}

void ReturnFreedMemory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace tandem
