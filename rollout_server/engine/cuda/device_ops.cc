#include "rollout_server/engine/cuda/device_ops.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <tuple>

namespace tandem::rollout::cuda {

int DeviceCount() { return c10::cuda::device_count(); }
std::string DeviceName() { return at::cuda::getCurrentDeviceProperties()->name; }

DeviceMemory MemoryOfDevice() {
  c10::cuda::CUDACachingAllocator::emptyCache();
  size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return {static_cast<int64_t>(free), static_cast<int64_t>(total)};
}

const Device kMemory = Device::kCuda;

at::TensorOptions On(at::ScalarType type) {
  return at::TensorOptions().dtype(type).device(at::kCUDA);
}

at::Tensor HostBytes(int64_t size) {
  return at::empty({size}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
}

// LibTorch hands out a priority's streams in turn and begins again, so the two take different ones.
c10::Stream StreamOfSteps() { return c10::cuda::getStreamFromPool(/*isHighPriority=*/true); }
c10::Stream StreamOfUploads() { return c10::cuda::getStreamFromPool(/*isHighPriority=*/false); }

tandem::cuda::Stream CurrentStream() { return c10::cuda::getCurrentCUDAStream().stream(); }
void Wait(const c10::Stream& stream) { c10::cuda::CUDAStream(stream).synchronize(); }

at::Tensor Product(const at::Tensor& x, const at::Tensor& weight) {
  if (x.scalar_type() == at::kFloat) return at::mm(x, weight.t());
  return at::mm(x, weight.t(), at::kFloat);
}

at::Tensor FlashAttention(const FlashTask& task) {
  return std::get<0>(at::_flash_attention_forward(
      task.queries, task.keys, task.values, task.query_ends, task.key_ends, task.longest_query,
      task.longest_key, /*dropout_p=*/0.0, /*is_causal=*/true, /*return_debug_mask=*/false,
      /*scale=*/1.0));
}

struct DeviceGraph::Impl {
  at::cuda::CUDAGraph graph;
};

DeviceGraph::DeviceGraph(const std::function<void()>& work, const DeviceGraph* beside)
    : impl_(std::make_unique<Impl>()) {
  at::cuda::CUDAGraph& graph = impl_->graph;
  const auto pool = beside == nullptr ? at::cuda::graph_pool_handle() : beside->impl_->graph.pool();
  // Captures this thread only: an upload may allocate and wait at the same time.
  graph.capture_begin(pool, cudaStreamCaptureModeThreadLocal);
  try {
    work();
  } catch (...) {
    try {
      graph.capture_end();  // else the stream stays in capture mode
    } catch (const std::exception&) {
      // Report the first error.
    }
    throw;
  }
  graph.capture_end();
}

DeviceGraph::~DeviceGraph() = default;

void DeviceGraph::Replay() { impl_->graph.replay(); }

}  // namespace tandem::rollout::cuda
