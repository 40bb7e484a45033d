// AvailableMemoryBytes: what this process can still take before the kernel's out-of-memory killer
// comes: of the machine, and of the memory cgroups (v1 or v2) it lives in.
#ifndef TANDEM_COMMON_PROCESS_AVAILABLE_MEMORY_H_
#define TANDEM_COMMON_PROCESS_AVAILABLE_MEMORY_H_

#include <cstdint>
#include <optional>
#include <string>

namespace tandem {

// Files below `root`: "" is this machine. Page cache counts as free, since the kernel gives it up.
// Nothing when neither /proc/meminfo nor a cgroup says. Thread-safe.
std::optional<int64_t> AvailableMemoryBytes(const std::string& root = "");

}  // namespace tandem

#endif  // TANDEM_COMMON_PROCESS_AVAILABLE_MEMORY_H_
