// WaitUntil: waits for another process, with a generous limit. It checks every millisecond, so that
// a test ends as soon as possible and does not depend on the speed of the machine.
#pragma once

#include <unistd.h>

#include "common/base/clock.h"

namespace tandem::testing {

// Returns true as soon as `condition()` is true, and false after `seconds`.
template <typename Condition>
bool WaitUntil(const Condition& condition, double seconds = 120) {
  const double until = MonotonicSeconds() + seconds;
  while (!condition()) {
    if (MonotonicSeconds() > until) return false;
    usleep(1000);
  }
  return true;
}

}  // namespace tandem::testing
