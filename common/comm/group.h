// Groups of processes, for code that does not include LibTorch: how a Collective is made, and how
// bytes are sent from one member to all.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/model/numerics.h"
#include "common/rendezvous/roll_call.h"
#include "common/rendezvous/store.h"

namespace tandem::comm {

class Collective;

// The library that carries out the operations of a group. kNccl works between GPUs, one per member,
// and exists only in builds of the cuda preset.
enum class Backend { kGloo, kNccl };

// The device whose memory the operations of a group read and write.
constexpr Device DeviceOf(Backend backend) {
  return backend == Backend::kNccl ? Device::kCuda : Device::kCpu;
}

// An operation of a group that was started but not waited for. Do not touch the operation's memory
// until Wait returns, and always call Wait. Several operations may be in progress; wait for them in
// the order in which they were started.
class Pending {
 public:
  explicit Pending(std::function<absl::Status()> wait) : wait_(std::move(wait)) {}
  absl::Status Wait() { return wait_(); }

 private:
  std::function<absl::Status()> wait_;
};

struct GroupOptions {
  std::string name;  // unique among the groups of a store
  int rank = 0;
  std::vector<std::string> members;             // "host:pid" of each rank, for messages
  absl::Duration deadline = absl::Minutes(10);  // of each operation
  LagWarning lag;
};

// Makes a group. All members call it; it waits for the others until the deadline.
//   UNAVAILABLE          not all members came (the message names them), or the store is gone
//   UNIMPLEMENTED        NCCL in a build without it
//   FAILED_PRECONDITION  NCCL on a machine without a CUDA device
absl::StatusOr<std::shared_ptr<Collective>> JoinGroup(Backend backend, const Store& store,
                                                      const GroupOptions& options);

// Replaces `bytes` by the root's. Every rank passes the same number of bytes, which must stay valid
// until the wait is over. The bytes are in the memory of `where`. Host memory goes over NCCL
// through a buffer on this process's current device. Device memory needs NCCL and is sent in place;
// whatever reads or writes it there must have been put on the current stream before, or be
// finished. Errors are those of the collective, and:
//   INTERNAL          device memory could not be allocated, or the device failed
//   INVALID_ARGUMENT  device memory over Gloo
absl::Status BroadcastBytes(Collective& group, std::span<std::byte> bytes, int root,
                            Device where = Device::kCpu);
Pending StartBroadcastBytes(Collective& group, std::span<std::byte> bytes, int root,
                            Device where = Device::kCpu);

// True in builds of the cuda preset, which contain NCCL.
bool HasNccl();

// Same as Collective::Abort.
void AbortGroup(Collective& group, const std::string& reason);

// c10d's flight record of this process as JSON: the last 2 000 operations of all groups with sizes,
// states and times. Empty if there were none.
std::string FlightRecord();

}  // namespace tandem::comm
