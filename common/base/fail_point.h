// FailPoint: a step at which a test may end this process as a crash would, with SIGKILL. Tests kill
// a process at each step of a weight push and at each durable point of a checkpoint in turn.
//
// Off, and one look into the environment, unless TANDEM_FAIL_POINT is set: "SUBSTRING:N" ends the
// process when it passes the N-th point (from 1) whose name contains SUBSTRING. The points stand at
// steps that take milliseconds and more, never in a decode step or a kernel.
#ifndef TANDEM_COMMON_BASE_FAIL_POINT_H_
#define TANDEM_COMMON_BASE_FAIL_POINT_H_

#include <string_view>

namespace tandem {

// Thread-safe.
void FailPoint(std::string_view name);

}  // namespace tandem

#endif  // TANDEM_COMMON_BASE_FAIL_POINT_H_
