// Restarts: which process of a local run is started again after it died, when, and how often. Pure.
// The launcher uses it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "cli/io/child_process.h"

namespace tandem::cli {

struct RestartLimits {
  int64_t most = 0;          // of each process, over the whole run; 0: none
  double delay_seconds = 1;  // before the first of a process, doubled for each of its next
};

// The longest delay, however often a process died.
inline constexpr double kMaxRestartDelaySeconds = 60;

// Would another try end otherwise? Yes after a signal, an internal error (1), a lost rank (10), and
// for a server (`is_server`) that ended as if it had been asked to; no where the command line, a
// model, the storage or the training itself is the cause.
bool WorthRestart(const ChildEnd& end, bool is_server);

// Thread-compatible.
class Restarts {
 public:
  explicit Restarts(const RestartLimits& limits) : limits_(limits) {}

  // The process `name` died: how many seconds from now it is to be started again. Nothing once that
  // happened `most` times.
  std::optional<double> NextDelay(const std::string& name);

  int64_t count(const std::string& name) const;
  int64_t most() const { return limits_.most; }
  const std::map<std::string, int64_t>& counts() const { return counts_; }

 private:
  const RestartLimits limits_;
  std::map<std::string, int64_t> counts_;
};

}  // namespace tandem::cli
