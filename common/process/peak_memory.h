// The peak memory of this process. Thread-safe.
#ifndef TANDEM_COMMON_PROCESS_PEAK_MEMORY_H_
#define TANDEM_COMMON_PROCESS_PEAK_MEMORY_H_

#include <sys/resource.h>

#include <cstdint>

namespace tandem {

// The peak resident size in bytes since the process started, including shared libraries and mapped
// files that it touched.
inline int64_t PeakMemoryBytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace tandem

#endif  // TANDEM_COMMON_PROCESS_PEAK_MEMORY_H_
