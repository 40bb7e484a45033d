#include "trainer/ranks/cuda_device.h"

#include <ATen/Context.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include "common/base/status_macros.h"
#include "common/tensor/torch_status.h"

namespace tandem::trainer {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

}  // namespace

absl::StatusOr<int> CountCudaDevices() { return c10::cuda::device_count(); }

absl::Status UseCudaDevice(int index) {
  const absl::Status used = CatchTorch("CUDA device", [&] {
    c10::cuda::set_device(static_cast<c10::DeviceIndex>(index), /*force=*/true);
    at::globalContext().lazyInitDevice(at::kCUDA);  // the allocator has no numbers before
  });
  return used.ok() ? used : FailedPrecondition(used.message());
}

std::string CudaDeviceName() { return at::cuda::getCurrentDeviceProperties()->name; }

CudaPeaks PeakCudaMemory() {
  const auto stats = allocator::getDeviceStats(c10::cuda::current_device());
  return {stats.allocated_bytes[kAll].peak, stats.reserved_bytes[kAll].peak};
}

void ResetPeakCudaMemory() { allocator::resetPeakStats(c10::cuda::current_device()); }

int64_t TotalCudaMemory() {
  return static_cast<int64_t>(allocator::get()->getMemoryInfo(c10::cuda::current_device()).second);
}

}  // namespace tandem::trainer
