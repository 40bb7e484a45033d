// Load on a running rollout server, for `tandem bench serve`: groups over gRPC, closed loop (so
// many in flight) or open loop (so many a second, whatever the server does). gRPC stays behind this
// header.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/rpc/credentials.h"

namespace tandem::cli {

struct ServeLoad {
  std::string address;
  rpc::Caller caller;
  int64_t groups = 64;
  int64_t group_size = 8;
  int64_t prompt_tokens = 64, new_tokens = 128;
  int64_t concurrency = 8;       // groups in flight; not used with a rate
  double groups_per_second = 0;  // > 0: open loop with Poisson arrivals
  uint64_t seed = 0;             // of prompts, sampling and arrivals
  double timeout_seconds = 600;  // of one group
};

// One group as its caller saw it. Times of the server are its own; milliseconds.
struct ServedGroup {
  std::string code = "OK";  // of gRPC
  std::string message;
  double total_ms = 0;  // from when it was due (open loop) or sent, to the last completion
  double late_ms = 0;   // from when it was due until it was sent
  double queue_ms = 0, prefill_ms = 0;
  std::vector<double> between_tokens_ms;  // by completion: mean time between its tokens
  std::vector<double> longest_gap_ms;     // by completion
  int64_t tokens = 0;                     // sampled
};

struct ServeResult {
  std::vector<ServedGroup> groups;
  double seconds = 0;  // from the first call to the last answer
};

// Distinct prompts of random ids, end tokens ignored. `progress(done)` is called from the threads
// that ask, one at a time.
//   UNAVAILABLE, DEADLINE_EXCEEDED  the server does not answer at all (address named)
//   INVALID_ARGUMENT                a group could never run there (context, batch size)
absl::StatusOr<ServeResult> RunServeLoad(const ServeLoad& load,
                                         const std::function<void(int64_t)>& progress);

// Were any groups answered?
bool AnyServed(const ServeResult& result);

// Nearest rank: the least value that at least q of them do not exceed; 0 of nothing.
double Quantile(std::vector<double> values, double q);
inline double Median(const std::vector<double>& values) { return Quantile(values, 0.5); }

// Throughput, answers by code, and p50 / p90 / p99 / largest of each time. Pure.
std::string ToText(const ServeLoad& load, const ServeResult& result);
std::string ToJson(const ServeLoad& load, const ServeResult& result);

}  // namespace tandem::cli
