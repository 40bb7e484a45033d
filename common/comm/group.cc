#include "common/comm/group.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/distributed/c10d/FlightRecorder.hpp>

#include <utility>

#include "common/base/status_macros.h"
#include "common/comm/backends.h"
#include "common/comm/collective.h"
#include "common/tensor/torch_status.h"

namespace tandem::comm {
namespace {

Pending Failed(absl::Status why) {
  return Pending([why = std::move(why)] { return why; });
}

Pending StartBroadcastOnDevice(Collective& group, std::byte* bytes, int64_t size, int root) {
  if (group.device().is_cpu()) {
    return Failed(
        InvalidArgument("a group over Gloo cannot broadcast memory of a device: take NCCL"));
  }
  at::Tensor there;
  const absl::Status made = CatchTorch("bytes of a broadcast on the device", [&] {
    there =
        at::from_blob(bytes, {size}, at::TensorOptions().dtype(at::kByte).device(group.device()));
  });
  return made.ok() ? group.StartBroadcast(there, root) : Failed(made);
}

}  // namespace

absl::StatusOr<std::shared_ptr<Collective>> JoinGroup(Backend backend, const Store& store,
                                                      const GroupOptions& options) {
  return Collective::Make(backend, store, options);
}

absl::Status BroadcastBytes(Collective& group, std::span<std::byte> bytes, int root, Device where) {
  return StartBroadcastBytes(group, bytes, root, where).Wait();
}

// Gloo sends host memory in place. NCCL needs device memory, so host bytes go through a device
// tensor, which the returned Pending keeps until the wait is over. The copy back to the host runs
// in the wait, after the broadcast has finished.
Pending StartBroadcastBytes(Collective& group, std::span<std::byte> bytes, int root, Device where) {
  if (bytes.empty()) return Pending([] { return absl::OkStatus(); });
  const auto size = static_cast<int64_t>(bytes.size());
  if (where == Device::kCuda) return StartBroadcastOnDevice(group, bytes.data(), size, root);
  const at::Tensor host = at::from_blob(bytes.data(), {size}, at::kByte);
  if (group.device().is_cpu()) return group.StartBroadcast(host, root);
  const bool is_root = group.rank() == root;
  at::Tensor staged;
  absl::Status made = CatchTorch("bytes of a broadcast on their way to the device", [&] {
    staged = is_root ? host.to(group.device())
                     : at::empty_like(host, host.options().device(group.device()));
  });
  if (!made.ok()) return Failed(std::move(made));
  const auto sent = std::make_shared<Pending>(group.StartBroadcast(staged, root));
  return Pending([sent, staged, host, is_root]() -> absl::Status {
    const absl::Status status = sent->Wait();
    if (!status.ok() || is_root) return status;
    return CatchTorch("bytes of a broadcast on their way to the host", [&] { host.copy_(staged); });
  });
}

void AbortGroup(Collective& group, const std::string& reason) { group.Abort(reason); }

std::string FlightRecord() {
  std::string nccl_record = NcclFlightRecord();
  if (!nccl_record.empty()) return nccl_record;
  return c10d::dump_fr_trace_json(/*includeCollectives=*/true, /*onlyActive=*/false);
}

}  // namespace tandem::comm
