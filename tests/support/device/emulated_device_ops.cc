// The operations that the CUDA runner needs from LibTorch's CUDA half (device_ops.h), on the CPU:
// memory is the host's, there is one stream, products are LibTorch's on the CPU, flash attention is
// written out, and replaying a graph repeats its work. Tests can thus execute the runner itself,
// over emulated kernels; what a real device records and replays is not tested.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>

#include <limits>
#include <vector>

#include "tests/support/device/emulated_device_ops.h"

namespace tandem::rollout::cuda {

EmulatedDevice& emulated_device() {
  static EmulatedDevice device;
  return device;
}

int DeviceCount() { return 1; }
std::string DeviceName() { return "emulated"; }
DeviceMemory MemoryOfDevice() { return emulated_device().memory; }

const Device kMemory = Device::kCpu;

at::TensorOptions On(at::ScalarType type) { return at::TensorOptions().dtype(type); }
at::Tensor HostBytes(int64_t size) { return at::empty({size}, On(at::kByte)); }

c10::Stream StreamOfSteps() { return c10::Stream(c10::Stream::DEFAULT, c10::Device(c10::kCPU)); }
c10::Stream StreamOfUploads() { return StreamOfSteps(); }
tandem::cuda::Stream CurrentStream() { return nullptr; }
void Wait(const c10::Stream&) {}

at::Tensor Product(const at::Tensor& x, const at::Tensor& weight) {
  return at::mm(x.to(at::kFloat), weight.to(at::kFloat).t());
}

at::Tensor FlashAttention(const FlashTask& task) {
  const int32_t* const query_ends = task.query_ends.const_data_ptr<int32_t>();
  const int32_t* const key_ends = task.key_ends.const_data_ptr<int32_t>();
  const int64_t group = task.queries.size(1) / task.keys.size(1);
  std::vector<at::Tensor> runs;
  for (int64_t r = 0; r + 1 < task.query_ends.numel(); ++r) {
    const int64_t q = query_ends[r + 1] - query_ends[r], k = key_ends[r + 1] - key_ends[r];
    TORCH_CHECK(q <= task.longest_query && k <= task.longest_key);
    // [H, q or k, D]
    const auto heads = [](const at::Tensor& all, int64_t first, int64_t count) {
      return all.narrow(0, first, count).to(at::kFloat).transpose(0, 1);
    };
    const at::Tensor queries = heads(task.queries, query_ends[r], q);
    const at::Tensor keys = heads(task.keys, key_ends[r], k).repeat_interleave(group, 0);
    const at::Tensor values = heads(task.values, key_ends[r], k).repeat_interleave(group, 0);
    const at::Tensor hidden = at::ones({q, k}, On(at::kBool)).triu(k - q + 1);
    const at::Tensor scores = at::matmul(queries, keys.transpose(1, 2))
                                  .masked_fill(hidden, -std::numeric_limits<double>::infinity());
    runs.push_back(at::matmul(at::softmax(scores, 2), values).transpose(0, 1));
  }
  return at::cat(runs).to(at::kBFloat16);
}

struct DeviceGraph::Impl {
  std::function<void()> work;
};

DeviceGraph::DeviceGraph(const std::function<void()>& work, const DeviceGraph*)
    : impl_(std::make_unique<Impl>(Impl{work})) {
  TORCH_CHECK_WITH(OutOfMemoryError, emulated_device().graphs_left-- > 0,
                   "CUDA out of memory: the emulated device has no room for a graph");
}
DeviceGraph::~DeviceGraph() = default;
void DeviceGraph::Replay() { impl_->work(); }

}  // namespace tandem::rollout::cuda
