// The size of /dev/shm, through which NCCL moves data between the GPUs of a machine. Containers
// have 64 MiB of it by default, and NCCL then fails with messages that do not name the cause.
#ifndef TANDEM_COMMON_FILES_SHARED_MEMORY_H_
#define TANDEM_COMMON_FILES_SHARED_MEMORY_H_

#include <sys/statvfs.h>

#include <cstdint>
#include <string>

namespace tandem {

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

#endif  // TANDEM_COMMON_FILES_SHARED_MEMORY_H_
