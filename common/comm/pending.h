// Pending: an operation of a group that was begun.
#ifndef TANDEM_COMMON_COMM_PENDING_H_
#define TANDEM_COMMON_COMM_PENDING_H_

#include <functional>
#include <utility>

#include "absl/status/status.h"

namespace tandem::comm {

// Its memory is not to be touched until Wait returns, and Wait must be called. Several may be under
// way; they are waited for in the order they were begun.
class Pending {
 public:
  explicit Pending(std::function<absl::Status()> wait) : wait_(std::move(wait)) {}
  absl::Status Wait() { return wait_(); }

 private:
  std::function<absl::Status()> wait_;
};

}  // namespace tandem::comm

#endif  // TANDEM_COMMON_COMM_PENDING_H_
