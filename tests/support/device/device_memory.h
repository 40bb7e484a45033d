// Memory of the device that runs the kernels of a test: the GPU, or the CPU where they are emulated
// (tests/support/device/cuda_emulator.h), so that one test source serves both.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#ifdef TANDEM_ON_GPU
#include <cuda_runtime_api.h>
#else
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#endif

#include "common/cuda/kernels.h"
#include "common/tensor/bf16_rounding.h"

namespace tandem::cuda {

// An array on the device. Read waits for the kernels before it. On the CPU, the array ends at a
// page that may not be accessed, so that a kernel that runs past the end is found.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& values) : size_(values.size()) {
    const size_t bytes = std::max<size_t>(1, size_ * sizeof(T));
#ifdef TANDEM_ON_GPU
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), bytes), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
#else
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), used = (bytes + 15) / 16 * 16;
    mapped_ = (used + page - 1) / page * page + page;
    base_ = static_cast<char*>(
        mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_EQ(mprotect(base_ + mapped_ - page, page, PROT_NONE), 0);
    data_ = reinterpret_cast<T*>(base_ + mapped_ - page - used);
    if (size_ > 0) std::memcpy(data_, values.data(), size_ * sizeof(T));
#endif
  }
  explicit DeviceArray(size_t size, T value = T{}) : DeviceArray(std::vector<T>(size, value)) {}
  ~DeviceArray() {
#ifdef TANDEM_ON_GPU
    cudaFree(data_);
#else
    munmap(base_, mapped_);
#endif
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return data_; }

  std::vector<T> Read() const {
    std::vector<T> values(size_);
#ifdef TANDEM_ON_GPU
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
#else
    if (size_ > 0) std::memcpy(values.data(), data_, size_ * sizeof(T));
#endif
    EXPECT_EQ(KernelError(), nullptr);
    return values;
  }

 private:
  size_t size_;
  T* data_ = nullptr;
#ifndef TANDEM_ON_GPU
  char* base_ = nullptr;
  size_t mapped_ = 0;
#endif
};

inline std::vector<float> Normal(size_t size, uint32_t seed, float spread = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> values(size);
  for (float& x : values) x = normal(random);
  return values;
}

inline std::vector<uint16_t> Bf16Of(const std::vector<float>& values) {
  std::vector<uint16_t> bits;
  for (const float x : values) bits.push_back(NearestBf16(x));
  return bits;
}

inline std::vector<float> FloatsOf(const std::vector<uint16_t>& bits) {
  std::vector<float> values;
  for (const uint16_t b : bits)
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(b) << 16));
  return values;
}
inline std::vector<float> FloatsOf(const std::vector<float>& values) { return values; }

// For fp32 sums in another order; in bf16, a value may also round to its neighbour.
constexpr double Tolerance(Element element) { return element == Element::kFp32 ? 4e-6 : 0x1p-8; }

// Expects got = want, within `tolerance` of the larger of want and the typical size `scale`.
inline void ExpectClose(const std::vector<float>& got, const std::vector<float>& want,
                        double tolerance, double scale = 0.05) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], tolerance * std::max<double>(std::abs(want[i]), scale))
        << "at " << i;
  }
}

}  // namespace tandem::cuda
