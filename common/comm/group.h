// Groups of processes, for code that does not see LibTorch: what a Collective is made of, and bytes
// from one member to all.
#ifndef TANDEM_COMMON_COMM_GROUP_H_
#define TANDEM_COMMON_COMM_GROUP_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/comm/backend.h"
#include "common/comm/pending.h"
#include "common/rendezvous/roll_call.h"
#include "common/rendezvous/store.h"

namespace tandem::comm {

class Collective;

struct GroupOptions {
  std::string name;  // no two groups of a store have the same
  int rank = 0;
  std::vector<std::string> members;             // "host:pid" of each rank, for messages
  absl::Duration deadline = absl::Minutes(10);  // of an operation
  LagWarning lag;
};

// All members call it, and wait for each other until the deadline.
//   UNAVAILABLE          not all came (the message says who), or the store is gone
//   UNIMPLEMENTED        this build has no NCCL
//   FAILED_PRECONDITION  NCCL on a machine without a CUDA device
absl::StatusOr<std::shared_ptr<Collective>> JoinGroup(Backend backend, const Store& store,
                                                      const GroupOptions& options);

// `bytes` becomes the root's; as many at all ranks, and there until the wait is over. They lie in
// memory of `where`: the host's, from which they go over NCCL through memory of this process's
// current device; or, over NCCL alone, that device's, from which they go as they are. What writes
// or reads them there was put on the current stream before, or is waited for. Errors: those of the
// collective; INTERNAL: that memory could not be had, or the device failed; INVALID_ARGUMENT:
// memory of a device over Gloo.
absl::Status BroadcastBytes(Collective& group, std::span<std::byte> bytes, int root,
                            Device where = Device::kCpu);
Pending StartBroadcastBytes(Collective& group, std::span<std::byte> bytes, int root,
                            Device where = Device::kCpu);

// Is NCCL in this build? In the cuda preset alone.
bool HasNccl();

// As Collective::Abort.
void AbortGroup(Collective& group, const std::string& reason);

// c10d's flight record of this process: the last 2 000 operations of all groups with sizes, states
// and times, as JSON. Empty without any.
std::string FlightRecord();

}  // namespace tandem::comm

#endif  // TANDEM_COMMON_COMM_GROUP_H_
