#include "common/tensor/aligned_buffer.h"

#include <sys/mman.h>

#include <new>

namespace tandem {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;

}  // namespace

AlignedBuffer::AlignedBuffer(int64_t bytes) {
  if (bytes <= 0) return;
  // Fresh pages are zero and cost memory only once touched.
  void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  if (bytes >= kHugePage) {
    madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // advice: may be refused
  }
  data_ = data;
  size_ = bytes;
}

AlignedBuffer::~AlignedBuffer() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(size_));
}

}  // namespace tandem
