// RunOrLeaveBehind: a deadline for a call that has none and that nobody can end from outside, such
// as NCCL's own meeting, which waits for a member that has died in the middle of it. Free of
// LibTorch.
#ifndef TANDEM_COMMON_COMM_LEAVE_BEHIND_H_
#define TANDEM_COMMON_COMM_LEAVE_BEHIND_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace tandem::comm {

// Runs `work` on a thread of its own and waits for it. `work` owns all that it touches: a thread
// that is not back at the deadline is left behind, and goes on until its call returns or the
// process ends; what it gives then is dropped.
//   DEADLINE_EXCEEDED  it was left behind; `what` opens the message
//   INTERNAL           it threw; the message is the exception's
absl::Status RunOrLeaveBehind(const std::string& what, absl::Duration deadline,
                              std::function<void()> work);

}  // namespace tandem::comm

#endif  // TANDEM_COMMON_COMM_LEAVE_BEHIND_H_
