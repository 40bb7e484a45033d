// Clocks: a monotonic clock for durations and the wall clock for records. A class whose behaviour
// depends on time takes a SecondsClock in its constructor, so that tests can pass a clock that they
// control.
#pragma once

#include <chrono>
#include <cstdio>
#include <ctime>
#include <functional>
#include <string>

#include "absl/time/time.h"

namespace tandem {

// Seconds since a fixed but unspecified moment of this machine. The value never decreases.
// Thread-safe.
inline double MonotonicSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds since 1970 by the wall clock.
inline double UnixSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

using SecondsClock = std::function<double()>;

// "2026-03-01T12:00:00.123Z". Thread-safe.
inline std::string Rfc3339(std::chrono::system_clock::time_point moment) {
  using std::chrono::milliseconds;
  const auto since_epoch = std::chrono::floor<milliseconds>(moment.time_since_epoch());
  const auto seconds = std::chrono::floor<std::chrono::seconds>(since_epoch);
  const std::time_t whole = static_cast<std::time_t>(seconds.count());
  std::tm utc = {};
  gmtime_r(&whole, &utc);
  char date[32];
  std::strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &utc);
  char text[48];
  std::snprintf(text, sizeof(text), "%s.%03dZ", date,
                static_cast<int>((since_epoch - seconds).count()));
  return text;
}

inline std::string Rfc3339Now() { return Rfc3339(std::chrono::system_clock::now()); }

}  // namespace tandem

namespace tandem::comm {

// SteadyNow: the steady clock as an absl::Time, for deadlines and durations that must not depend on
// jumps of the wall clock. Only differences between its values have a meaning.

inline absl::Time SteadyNow() { return absl::UnixEpoch() + absl::Seconds(MonotonicSeconds()); }

}  // namespace tandem::comm
