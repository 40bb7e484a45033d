// AlignedBuffer: memory for weights, KV cache and activations. It is zeroed by the kernel, aligned
// to a cache line, and on huge pages when it is large, which saves address translations while
// weights are streamed. Free of LibTorch. Thread-compatible.
#pragma once

#include <cstdint>
#include <utility>

namespace tandem {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // Allocates `bytes` zero bytes. Throws std::bad_alloc.
  explicit AlignedBuffer(int64_t bytes);
  ~AlignedBuffer();
  AlignedBuffer(AlignedBuffer&& other) noexcept { *this = std::move(other); }
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  // Allocates the physical memory now. Otherwise a page is allocated when it is first touched, and
  // a lack of memory would show only then. Throws std::bad_alloc if the kernel refuses.
  void Commit();

  template <typename T>
  T* as() {
    return static_cast<T*>(data_);
  }
  template <typename T>
  const T* as() const {
    return static_cast<const T*>(data_);
  }
  int64_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace tandem
