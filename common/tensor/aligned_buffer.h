// AlignedBuffer: memory for weights, KV cache and activations: zeroed by the kernel, aligned to a
// cache line, on huge pages when it is large (fewer address translations while weights stream by).
// Free of LibTorch. Thread-compatible.
#ifndef TANDEM_COMMON_TENSOR_ALIGNED_BUFFER_H_
#define TANDEM_COMMON_TENSOR_ALIGNED_BUFFER_H_

#include <cstdint>
#include <utility>

namespace tandem {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // Zeroes, `bytes` of them. Throws std::bad_alloc.
  explicit AlignedBuffer(int64_t bytes);
  ~AlignedBuffer();
  AlignedBuffer(AlignedBuffer&& other) noexcept { *this = std::move(other); }
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  // Takes the memory now, where a fresh page otherwise costs some only once it is touched: who
  // lacks it learns it here. Throws std::bad_alloc when the kernel refuses.
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

#endif  // TANDEM_COMMON_TENSOR_ALIGNED_BUFFER_H_
