// AvailableMemoryBytes: how much memory this process can still allocate before the kernel's
// out-of-memory killer ends it, given the limits of the machine and of the memory cgroups (v1 or
// v2) of the process.
#ifndef TANDEM_COMMON_PROCESS_AVAILABLE_MEMORY_H_
#define TANDEM_COMMON_PROCESS_AVAILABLE_MEMORY_H_

#include <cstdint>
#include <optional>
#include <string>

namespace tandem {

// Reads files below `root`; "" is this machine. The page cache counts as free, since the kernel can
// drop it. Returns nullopt if neither /proc/meminfo nor a cgroup tells. Thread-safe.
std::optional<int64_t> AvailableMemoryBytes(const std::string& root = "");

}  // namespace tandem

#endif  // TANDEM_COMMON_PROCESS_AVAILABLE_MEMORY_H_
