// Puts load on a running server, for `tandem bench serve` and `tandem bench push`: requests groups
// in a closed loop (a fixed number in flight) or in an open loop (a fixed rate, independent of the
// server), over gRPC or over OpenAI's HTTP API, which other engines serve too. gRPC and HTTP stay
// behind this header.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/rpc/credentials.h"
#include "common/rpc/tls_directory.h"

namespace tandem::cli {

enum class ServeProtocol {
  kGrpc,
  kHttp,        // /v1/completions
  kHttpStream,  // the same, token by token
};

struct ServeLoad {
  std::string address;
  ServeProtocol protocol = ServeProtocol::kGrpc;
  rpc::Caller caller;   // of gRPC
  rpc::TlsOptions tls;  // of HTTP
  int64_t groups = 64;
  int64_t group_size = 8;
  int64_t prompt_tokens = 64, new_tokens = 128;
  int64_t concurrency = 8;       // groups in flight in the closed loop
  double groups_per_second = 0;  // if > 0: an open loop with Poisson arrivals
  uint64_t seed = 0;             // of prompts, sampling and arrivals
  double timeout_seconds = 600;  // of one group
};

// One group as its caller saw it, in milliseconds. queue_ms and later fields are measured by the
// server over gRPC, and by the caller over HTTP, which cannot tell the queue from the prefill. NaN
// and empty: not known.
struct ServedGroup {
  std::string code = "OK";  // of gRPC; over HTTP "HTTP 429" and the like
  std::string message;
  double total_ms = 0;  // from its due time (open loop) or its sending to the last completion
  double late_ms = 0;   // from its due time to its sending
  double queue_ms = 0, prefill_ms = 0;
  std::vector<double> between_tokens_ms;  // mean time between two tokens, by completion
  std::vector<double> longest_gap_ms;     // longest time between two tokens, by completion
  int64_t tokens = 0;                     // sampled
};

// What a group asks for.
struct ServeRequest {
  int64_t number = 0;
  std::vector<int32_t> prompt;
  uint64_t seed = 0;
};

// A server as a protocol reaches it. Thread-safe.
class ServeTarget {
 public:
  virtual ~ServeTarget() = default;

  struct Limits {
    int64_t vocab_size = 0, context_tokens = 0;
  };
  //   UNAVAILABLE, DEADLINE_EXCEEDED  the server does not answer (address named)
  virtual absl::StatusOr<Limits> Reach() = 0;

  // One group; times but for total_ms and late_ms.
  virtual ServedGroup Ask(const ServeRequest& request) = 0;
};

std::unique_ptr<ServeTarget> MakeGrpcTarget(const ServeLoad& load);
std::unique_ptr<ServeTarget> MakeHttpTarget(const ServeLoad& load);

struct ServeResult {
  std::vector<ServedGroup> groups;
  double seconds = 0;  // from the first call to the last answer
};

// Requests groups with different prompts of random ids, and ignores end tokens. `progress(done)` is
// called from the requesting threads, one at a time.
//   UNAVAILABLE, DEADLINE_EXCEEDED  the server does not answer at all (address named)
//   INVALID_ARGUMENT                prompts and completions do not fit into the server's context
absl::StatusOr<ServeResult> RunServeLoad(const ServeLoad& load,
                                         const std::function<void(int64_t)>& progress);

// True if at least one group was answered.
bool AnyServed(const ServeResult& result);

// The nearest-rank quantile: the least value that is not less than a share q of `values`. 0 if
// there are none.
double Quantile(std::vector<double> values, double q);
inline double Median(const std::vector<double>& values) { return Quantile(values, 0.5); }

// One field of all records.
template <typename Record>
std::vector<double> Column(const std::vector<Record>& records, double Record::*field) {
  std::vector<double> values;
  for (const Record& record : records) values.push_back(record.*field);
  return values;
}

// Throughput, answers by code, and p50, p90, p99 and maximum of each time. Pure.
std::string ToText(const ServeLoad& load, const ServeResult& result);
std::string ToJson(const ServeLoad& load, const ServeResult& result);

}  // namespace tandem::cli
