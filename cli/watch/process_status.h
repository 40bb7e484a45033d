// One line about a process of a run, for `tandem status`. gRPC stays behind this header.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/rpc/credentials.h"

namespace tandem::cli {

// Asks a rollout server at the port of its service: "HOST:PORT  llama bf16 fast (avx512)  version
// 12 (epoch 1)  groups 8 running, 3 queued of 256  KV 1200/32768 tokens ...".
//   DEADLINE_EXCEEDED, UNAVAILABLE  no answer within `timeout_seconds` (address named)
absl::StatusOr<std::string> AskServer(const std::string& address, double timeout_seconds,
                                      const rpc::Caller& caller = {});

// Asks a trainer or a rollout server at its observe port: "trainer  HOST:PORT  step 12 ...  ready:
// run small-0 reached its servers". Errors are those of HttpGet.
absl::StatusOr<std::string> AskObservePort(const std::string& address, double timeout_seconds);

// Series -> value of a page in Prometheus text format. Labels belong to the name of a series.
std::map<std::string, double> ParseMetrics(std::string_view page);

// What AskObservePort prints of the metrics of a trainer and of a rollout server: "step 12 of 100,
// the last 3.2 s ago  waits for rollouts 41% ...". `now` is in seconds since 1970.
std::string DescribeTrainer(const std::map<std::string, double>& metrics, double now);
std::string DescribeServer(const std::map<std::string, double>& metrics);

}  // namespace tandem::cli
