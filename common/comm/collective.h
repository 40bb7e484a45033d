// Collective: operations of a fixed group of processes on tensors, over c10d: Gloo on CPUs, NCCL on
// CUDA devices. Every member calls the same operations in the same order.
//
// Every operation has a deadline. When one fails (a member died, hangs, lags or was cut off) the
// group is broken for good: the error names who is to blame, as RollCall finds out, and every later
// call returns it. Who goes on makes another group, under another name, with those that are left.
#ifndef TANDEM_COMMON_COMM_COLLECTIVE_H_
#define TANDEM_COMMON_COMM_COLLECTIVE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/comm/group.h"
#include "common/rendezvous/store.h"

namespace tandem::comm {

enum class Reduction { kSum, kMax };

// Of one thread at a time. Tensors are contiguous, on the backend's device, of the same shape and
// dtype on all members.
class Collective {
 public:
  // As JoinGroup (group.h), and with NCCL
  //   FAILED_PRECONDITION  this machine has no CUDA device
  static absl::StatusOr<std::unique_ptr<Collective>> Make(Backend backend, const Store& store,
                                                          const GroupOptions& options);
  ~Collective();

  int rank() const;
  int size() const;
  const std::string& name() const;
  at::Device device() const;  // that tensors must be on

  // Of all:
  //   UNAVAILABLE  the operation failed or took longer than the deadline; the message says which
  //                operation of which group, its number, and the culprit
  //   ABORTED      Abort was called, here

  // `tensor` becomes the sum or the largest, element by element.
  absl::Status AllReduce(at::Tensor tensor, Reduction reduction = Reduction::kSum);
  // `tensor` becomes the root's.
  absl::Status Broadcast(at::Tensor tensor, int root);
  // `all` [size x n] becomes each member's `part` [n], in the order of ranks.
  absl::Status AllGather(at::Tensor part, at::Tensor all);
  // `part` [n] becomes this rank's n elements of the sum of `all` [size x n].
  absl::Status ReduceScatter(at::Tensor all, at::Tensor part);
  absl::Status Barrier();

  // The same, begun.
  Pending StartAllReduce(at::Tensor tensor, Reduction reduction = Reduction::kSum);
  Pending StartBroadcast(at::Tensor tensor, int root);
  // `part` may be this rank's place in `all`.
  Pending StartAllGather(at::Tensor part, at::Tensor all);
  Pending StartReduceScatter(at::Tensor all, at::Tensor part);

  // From any thread: later operations fail at once, and those under way no later than their
  // deadline (NCCL: soon).
  void Abort(const std::string& reason);

 private:
  struct Group;
  explicit Collective(std::shared_ptr<Group> group) : group_(std::move(group)) {}

  const std::shared_ptr<Group> group_;
};

}  // namespace tandem::comm

#endif  // TANDEM_COMMON_COMM_COLLECTIVE_H_
