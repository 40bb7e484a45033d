// SteadyNow: the steady clock as an absl::Time, for deadlines and durations that must not depend on
// jumps of the wall clock. Only differences between its values have a meaning.
#ifndef TANDEM_COMMON_RENDEZVOUS_STEADY_TIME_H_
#define TANDEM_COMMON_RENDEZVOUS_STEADY_TIME_H_

#include "absl/time/time.h"
#include "common/base/clock.h"

namespace tandem::comm {

inline absl::Time SteadyNow() { return absl::UnixEpoch() + absl::Seconds(MonotonicSeconds()); }

}  // namespace tandem::comm

#endif  // TANDEM_COMMON_RENDEZVOUS_STEADY_TIME_H_
