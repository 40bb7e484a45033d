#include "common/tensor/aligned_buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <new>

namespace tandem {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;

}  // namespace

AlignedBuffer::AlignedBuffer(int64_t bytes) {
  if (bytes <= 0) return;
  // Fresh pages are zero and take memory only when touched.
  void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  if (bytes >= kHugePage) {
    madvise(data, static_cast<size_t>(bytes),
            MADV_HUGEPAGE);  // only advice; the kernel may refuse it
  }
  data_ = data;
  size_ = bytes;
}

void AlignedBuffer::Commit() {
  if (data_ == nullptr) return;
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, since Linux 5.14
  if (madvise(data_, static_cast<size_t>(size_), kPopulateWrite) == 0) return;
  if (errno != EINVAL) throw std::bad_alloc();
  // On an older kernel, write to each page what it already contains.
  const int64_t page = sysconf(_SC_PAGESIZE);
  for (int64_t at = 0; at < size_; at += page) {
    volatile char* const byte = as<char>() + at;
    *byte = *byte;
  }
}

AlignedBuffer::~AlignedBuffer() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(size_));
}

}  // namespace tandem
