// FailPoint: a step at which a test can end this process with SIGKILL, as a crash would. Tests use
// it to kill a process at every step of a weight push and at every durable point of a checkpoint in
// turn.
//
// A fail point costs one look into the environment, and does nothing unless TANDEM_FAIL_POINT is
// set. TANDEM_FAIL_POINT="SUBSTRING:N" ends the process when it passes the N-th point (counted from
// 1) whose name contains SUBSTRING. Fail points are placed at steps that take milliseconds or more,
// never in a decode step or a kernel.
#pragma once

#include <string_view>

namespace tandem {

// Thread-safe.
void FailPoint(std::string_view name);

}  // namespace tandem
