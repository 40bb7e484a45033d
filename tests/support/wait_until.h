// WaitUntil: a generous wait for something another process does. Asks again every millisecond, so
// that a test ends as soon as it can and never depends on how long a machine takes.
#ifndef TANDEM_TESTS_SUPPORT_WAIT_UNTIL_H_
#define TANDEM_TESTS_SUPPORT_WAIT_UNTIL_H_

#include <unistd.h>

#include "common/base/clock.h"

namespace tandem::testing {

// True as soon as `condition()` is; false after `seconds`.
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

#endif  // TANDEM_TESTS_SUPPORT_WAIT_UNTIL_H_
