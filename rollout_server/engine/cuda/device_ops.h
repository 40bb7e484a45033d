// What the runner needs of LibTorch's CUDA half: memory, streams, products, flash attention and
// graphs. device_ops.cc implements it on a device. Tests link emulated_device_ops.cc
// (tests/support/device) instead, so that the runner itself runs on the CPU, with emulated kernels.
// Includes LibTorch; errors are c10::Error.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/cuda/kernels.h"
#include "common/model/numerics.h"
#include "rollout_server/engine/cuda/step/memory_plan.h"

namespace tandem::rollout::cuda {

int DeviceCount();
std::string DeviceName();       // of the device in use
DeviceMemory MemoryOfDevice();  // now, after LibTorch's cache was released

extern const Device kMemory;                // the device of On's memory: kCuda
at::TensorOptions On(at::ScalarType type);  // device memory
at::Tensor HostBytes(int64_t size);         // pinned host memory, for asynchronous copies

// One stream for steps and one for uploads beside them, which has the lower priority. Neither is
// the default stream, on which nothing can be captured.
c10::Stream StreamOfSteps();
c10::Stream StreamOfUploads();
tandem::cuda::Stream CurrentStream();  // this thread's, for kernels
void Wait(const c10::Stream& stream);

// x [N, I] times weight [O, I] transposed, fp32 [N, O], by cuBLAS. The bits of a row may depend on
// N.
at::Tensor Product(const at::Tensor& x, const at::Tensor& weight);

// Attention of runs of neighbouring tokens, each over its own context, with the causal mask aligned
// at the end: the last query sees the last key. bf16; queries [N, H, D] are scaled already.
struct FlashTask {
  at::Tensor queries, keys, values;  // [N, H, D], [T, Hkv, D]
  at::Tensor query_ends, key_ends;   // [runs + 1] int32, cumulative
  int64_t longest_query = 0, longest_key = 0;
};
at::Tensor FlashAttention(const FlashTask& task);  // [N, H, D]

// A CUDA graph: operations recorded once and replayed any number of times, with the same arguments
// in the same memory.
class DeviceGraph {
 public:
  // Records what `work` puts on the current stream, without running it. `work` must not wait, must
  // not copy from or to the host, and must have run on this stream before, since LibTorch
  // initialises things at their first use. Memory that it allocates belongs to the graph, and is
  // shared with `beside` unless that is null. Graphs that share memory must be replayed one after
  // the other, and must leave nothing in it that is read later. Other threads may use the device
  // meanwhile.
  DeviceGraph(const std::function<void()>& work, const DeviceGraph* beside);
  ~DeviceGraph();
  void Replay();  // on the current stream

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::rollout::cuda
