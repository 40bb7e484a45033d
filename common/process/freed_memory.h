// KeepFreedMemory: for the main function of programs that train on the CPU. They free a row's
// activations and allocate them anew for each row. Left alone, glibc gives such memory back and the
// kernel clears it again, which costs 7 % of a forward and backward pass.
#ifndef TANDEM_COMMON_PROCESS_FREED_MEMORY_H_
#define TANDEM_COMMON_PROCESS_FREED_MEMORY_H_

#ifdef __GLIBC__
#include <malloc.h>

#include <limits>
#endif

namespace tandem {

// From here on the whole process keeps memory that it frees, to allocate it again. Nothing
// happens with another C library.
inline void KeepFreedMemory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
#endif
}

}  // namespace tandem

#endif  // TANDEM_COMMON_PROCESS_FREED_MEMORY_H_
