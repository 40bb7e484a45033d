// RunOrLeaveBehind: gives a deadline to a blocking call that has none and cannot be interrupted. An
// example is the initialisation of an NCCL communicator, which waits for a member even if that
// member has died meanwhile. Free of LibTorch.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace tandem::comm {

// Runs `work` on its own thread and waits for it. A thread that has not returned at the deadline is
// detached; it runs until its call returns or the process ends, and its result is discarded. `work`
// must therefore own everything it touches.
//   DEADLINE_EXCEEDED  the thread was detached; the message starts with `what`
//   INTERNAL           `work` threw; the message is that of the exception
absl::Status RunOrLeaveBehind(const std::string& what, absl::Duration deadline,
                              std::function<void()> work);

}  // namespace tandem::comm
