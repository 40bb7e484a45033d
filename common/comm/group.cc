#include "common/comm/group.h"

#include <ATen/ops/from_blob.h>
#include <torch/csrc/distributed/c10d/FlightRecorder.hpp>

#include <utility>

#include "common/comm/backends.h"
#include "common/comm/collective.h"

namespace tandem::comm {

absl::StatusOr<std::shared_ptr<Collective>> JoinGroup(Backend backend, const Store& store,
                                                      const GroupOptions& options) {
  auto made = Collective::Make(backend, store, options);
  if (!made.ok()) return made.status();
  return std::shared_ptr<Collective>(*std::move(made));
}

absl::Status BroadcastBytes(Collective& group, std::span<std::byte> bytes, int root) {
  return StartBroadcastBytes(group, bytes, root).Wait();
}

Pending StartBroadcastBytes(Collective& group, std::span<std::byte> bytes, int root) {
  if (bytes.empty()) return Pending([] { return absl::OkStatus(); });
  return group.StartBroadcast(
      at::from_blob(bytes.data(), {static_cast<int64_t>(bytes.size())}, at::kByte), root);
}

void AbortGroup(Collective& group, const std::string& reason) { group.Abort(reason); }

std::string FlightRecord() {
  std::string of_nccl = NcclFlightRecord();
  if (!of_nccl.empty()) return of_nccl;
  return c10d::dump_fr_trace_json(/*includeCollectives=*/true, /*onlyActive=*/false);
}

}  // namespace tandem::comm
