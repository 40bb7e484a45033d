// Memory of this process: how much it can still allocate, how much it has used, and whether it
// keeps what it frees.
#pragma once

#include <sys/statvfs.h>

#include <cstdint>
#include <optional>
#include <string>

namespace tandem {

// How many bytes this process can still allocate before the kernel's out-of-memory killer ends it,
// given the limits of the machine and of the memory cgroups (v1 or v2) of the process. Reads files
// below `root`; "" is this machine. The page cache counts as free, since the kernel can drop it.
// Returns nullopt if neither /proc/meminfo nor a cgroup tells. Thread-safe.
std::optional<int64_t> AvailableMemoryBytes(const std::string& root = "");

// The peak resident size in bytes since the process started, including shared libraries and mapped
// files that it touched. Thread-safe.
int64_t PeakMemoryBytes();

// From now on the whole process keeps memory that it frees, for later allocations, but for arrays
// of 32 MiB and more. Does nothing with C libraries other than glibc. For the main function of
// programs that train on the CPU: they free the activations of a row and allocate them again for
// the next one. By default, glibc returns such memory to the kernel, which clears it again; that
// costs 7 % of a forward and backward pass. Large arrays (logits, the gradient of an embedding) go
// back: small ones would be cut out of their place, and then they would need another.
void KeepFreedMemory();

// Returns what this process has freed to the kernel, where KeepFreedMemory has it kept. For what
// stands between the phases of a train step: arrays of other sizes than those of the phase before
// do not fit into the holes that it left, and without these calls the memory of a long run grows.
// Takes a few milliseconds for each GiB, and the kernel clears the pages again when they are used.
// Does nothing with C libraries other than glibc. Thread-safe.
void ReturnFreedMemory();

// The size of /dev/shm, through which NCCL moves data between the GPUs of a machine. Containers
// have 64 MiB of it by default, and NCCL then fails with messages that do not name the cause.
inline constexpr uint64_t kEnoughSharedMemory = uint64_t{512} << 20;

// The size in bytes of the file system at `path`; 0 if there is none.
inline uint64_t SharedMemoryBytes(const char* path = "/dev/shm") {
  struct statvfs found = {};
  if (statvfs(path, &found) != 0) return 0;
  return uint64_t{found.f_blocks} * found.f_frsize;
}

// Advice for ranks that share a machine with `bytes` of shared memory; empty if they are enough.
inline std::string SharedMemoryProblem(uint64_t bytes) {
  if (bytes >= kEnoughSharedMemory) return "";
  return "/dev/shm holds " + std::to_string(bytes >> 20) +
         " MiB, and NCCL may need more between the GPUs of this machine: give the container at "
         "least 512 MiB "
         "(Kubernetes: launch.kubernetes.shm_gib; docker: --shm-size=1g)";
}

}  // namespace tandem
