// TANDEM_CHECK: ends the process with file, line and condition when an invariant of this code is
// broken. Bad input is never checked with it; bad input is an absl::Status. (c10 owns the name
// CHECK.)
#pragma once

#include <cstdio>
#include <cstdlib>

namespace tandem::internal {
[[noreturn]] inline void CheckFailed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "%s:%d: TANDEM_CHECK failed: %s\n", file, line, condition);
  std::abort();
}
}  // namespace tandem::internal

#define TANDEM_CHECK(condition) \
  ((condition) ? (void)0 : ::tandem::internal::CheckFailed(__FILE__, __LINE__, #condition))
