// What the runner asks of LibTorch's CUDA half: memory, streams, products, flash attention and
// graphs. On a device: device_ops.cc. Tests link tests/support/device/emulated_device_ops.cc in its place,
// so that the runner itself runs on the CPU, with emulated kernels. Includes LibTorch; errors are
// c10::Error.
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
std::string DeviceName();       // of the one that is used
DeviceMemory MemoryOfDevice();  // now, with what LibTorch keeps for itself given back

extern const Device kMemory;                // whose memory the next line's is: kCuda
at::TensorOptions On(at::ScalarType type);  // memory of the device
at::Tensor HostBytes(
    int64_t size);  // of the host, pinned: copies from and to it may be asynchronous

// A stream for steps, and one for uploads beside them, which never share one: steps go first.
// Neither is the default stream, on which nothing can be captured.
c10::Stream StreamOfSteps();
c10::Stream StreamOfUploads();
tandem::cuda::Stream CurrentStream();  // of this thread, for kernels
void Wait(const c10::Stream& stream);

// x [N, I] times weight [O, I] transposed, fp32 [N, O], by cuBLAS: the bits of a row may depend on
// N.
at::Tensor Product(const at::Tensor& x, const at::Tensor& weight);

// Attention of runs of neighbouring tokens, each over its own context, causal to the end of both:
// the last query sees the last key. bf16; queries [N, H, D] are scaled.
struct FlashTask {
  at::Tensor queries, keys, values;  // [N, H, D], [T, Hkv, D]
  at::Tensor query_ends, key_ends;   // [runs + 1] int32, cumulative
  int64_t longest_query = 0, longest_key = 0;
};
at::Tensor FlashAttention(const FlashTask& task);  // [N, H, D]

// Operations put down once, to be played with the same arguments in the same memory any number of
// times.
class DeviceGraph {
 public:
  // Records what `work` puts on the current stream and runs none of it. `work` waits for nothing,
  // copies nothing from or to the host, and has run before on this stream as it is: what LibTorch
  // sets up at a first use must stand. What it allocates stays the graph's, in memory shared with
  // `beside` unless that is null: graphs that share it are played one after the other, and leave
  // nothing in it that is read later. Other threads may use the device meanwhile.
  DeviceGraph(const std::function<void()>& work, const DeviceGraph* beside);
  ~DeviceGraph();
  void Replay();  // on the current stream

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::rollout::cuda
