// AskObservePort: one line about a process from its observe port, for `tandem status`.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tandem::cli {

// Series of a page in Prometheus text form, as they are written, labels included; comments left
// out.
std::map<std::string, double> ParseMetrics(std::string_view page);

// What a trainer's page says: "step 12 of 100, the last 3.2 s ago  waits for rollouts 41% ...".
// `now`: seconds since 1970.
std::string DescribeTrainer(const std::map<std::string, double>& metrics, double now);
// The same of a rollout server's.
std::string DescribeServer(const std::map<std::string, double>& metrics);

// "trainer  HOST:PORT  step 12 ...  ready: run small-0 reached its servers"
//   INVALID_ARGUMENT, UNAVAILABLE  HttpGet's
absl::StatusOr<std::string> AskObservePort(const std::string& address, double timeout_seconds);

}  // namespace tandem::cli
