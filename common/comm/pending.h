// Pending: an operation of a group that was started but not waited for.
#ifndef TANDEM_COMMON_COMM_PENDING_H_
#define TANDEM_COMMON_COMM_PENDING_H_

#include <functional>
#include <utility>

#include "absl/status/status.h"

namespace tandem::comm {

// Do not touch the operation's memory until Wait returns, and always call Wait. Several operations
// may be in progress; wait for them in the order in which they were started.
class Pending {
 public:
  explicit Pending(std::function<absl::Status()> wait) : wait_(std::move(wait)) {}
  absl::Status Wait() { return wait_(); }

 private:
  std::function<absl::Status()> wait_;
};

}  // namespace tandem::comm

#endif  // TANDEM_COMMON_COMM_PENDING_H_
