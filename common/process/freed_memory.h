// KeepFreedMemory: for the main function of programs that train on the CPU. They free the
// activations of a row and allocate them again for the next one. By default, glibc returns such
// memory to the kernel, which clears it again; that costs 7 % of a forward and backward pass.
#ifndef TANDEM_COMMON_PROCESS_FREED_MEMORY_H_
#define TANDEM_COMMON_PROCESS_FREED_MEMORY_H_

#ifdef __GLIBC__
#include <malloc.h>

#include <limits>
#endif

namespace tandem {

// From now on the whole process keeps memory that it frees, for later allocations. Does nothing
// with other C libraries.
inline void KeepFreedMemory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
#endif
}

}  // namespace tandem

#endif  // TANDEM_COMMON_PROCESS_FREED_MEMORY_H_
