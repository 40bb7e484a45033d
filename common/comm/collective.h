// Collective: operations of a fixed group of processes on tensors, through c10d: Gloo on CPUs, NCCL
// on CUDA devices. Every member must call the same operations in the same order.
//
// Every operation has a deadline. When an operation fails because a member died, hangs, lags or was
// cut off, the group is broken for good: the error names the culprits that RollCall found, and
// every later call returns the same error. Members that want to continue make another group under
// another name, with the members that are left.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/comm/group.h"
#include "common/rendezvous/store.h"

namespace tandem::comm {

enum class Reduction { kSum, kMax };

// Use from one thread at a time, except for Abort. Tensors are contiguous, on the backend's device,
// and of the same shape and dtype at all members.
class Collective {
 public:
  // Errors of JoinGroup (group.h).
  static absl::StatusOr<std::unique_ptr<Collective>> Make(Backend backend, const Store& store,
                                                          const GroupOptions& options);
  ~Collective();

  int rank() const;
  int size() const;
  const std::string& name() const;
  at::Device device() const;  // the device that tensors must be on

  // Errors of all operations:
  //   UNAVAILABLE  the operation failed or took longer than the deadline; the message names the
  //                operation, its number, the group and the culprits
  //   ABORTED      this process called Abort

  // Replaces `tensor` by the elementwise sum or maximum over all members.
  absl::Status AllReduce(at::Tensor tensor, Reduction reduction = Reduction::kSum);
  // Replaces `tensor` by the root's.
  absl::Status Broadcast(at::Tensor tensor, int root);

  // Start an operation without waiting for it.
  Pending StartAllReduce(at::Tensor tensor, Reduction reduction = Reduction::kSum);
  Pending StartBroadcast(at::Tensor tensor, int root);
  // `all` [size x n] receives every member's `part` [n], in the order of ranks. `part` may alias
  // this rank's section of `all`.
  Pending StartAllGather(at::Tensor part, at::Tensor all);
  // `part` [n] receives this rank's section of the sum of `all` [size x n].
  Pending StartReduceScatter(at::Tensor all, at::Tensor part);

  // Makes later operations fail at once. Operations in progress fail at their deadline at the
  // latest; with NCCL, soon. Callable from any thread.
  void Abort(const std::string& reason);

 private:
  struct Group;
  explicit Collective(std::shared_ptr<Group> group) : group_(std::move(group)) {}

  const std::shared_ptr<Group> group_;
};

}  // namespace tandem::comm
