// VllmServer: the HTTP calls that a run makes to one vLLM server. Each is one request, or a few that
// belong together, with its own connection and deadline. Statuses are those that the trainer's client
// treats its own servers by (call_end.h). Used by foreign_server.cc. Thread-safe.
//
// The routes to pause, to load weights and to mark them exist only while vLLM's development mode is
// on: VLLM_SERVER_DEV_MODE=1 in its environment.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "trainer/foreign/vllm_messages.h"

namespace tandem::trainer {

// Errors of all calls, and the server's own words:
//   UNAVAILABLE          it cannot be reached, or answered 5xx
//   DEADLINE_EXCEEDED    no answer in time
//   RESOURCE_EXHAUSTED   429, or an answer over 16 MiB
//   INVALID_ARGUMENT     it refuses the request (400, 422): too long for its context, for instance
//   FAILED_PRECONDITION  it has no such route: development mode is off
//   DATA_LOSS            its answer cannot be read
//   CANCELLED            `cancelled` said so
class VllmServer {
 public:
  using Cancelled = std::function<bool()>;

  // `host_port`: HOST:PORT of its HTTP server.
  VllmServer(const std::string& host_port, double call_seconds, double push_seconds);

  void Stop();  // calls in progress and later ones end with CANCELLED

  const std::string& url() const { return url_; }

  absl::Status CheckHealth();
  absl::StatusOr<VllmFacts> Facts();
  absl::StatusOr<std::vector<int32_t>> Tokenize(const std::string& model, const std::string& text);

  // POST /v1/completions with a body of vllm_messages.h; the answer as it came.
  absl::StatusOr<std::string> Complete(const std::string& body, const Cancelled& cancelled);
  absl::StatusOr<std::vector<float>> Score(const std::string& model, std::span<const int32_t> ids,
                                           const Cancelled& cancelled);

  // No token is sampled until Resume. `waits`: completions in progress end first; else they are
  // aborted. Both forget cached prefixes.
  absl::Status Pause(bool waits);
  absl::Status Resume();
  absl::StatusOr<bool> IsPaused();

  // Loads the weights of `directory`, a path on the server's machine, and forgets cached prefixes.
  absl::Status LoadWeights(const std::string& directory);

  // SHA-256 of each parameter as its kernels hold it; empty: the release has no such route.
  absl::StatusOr<std::map<std::string, std::string>> Checksums();

  // A text that stays as it is until the server ends or somebody marks it anew: by a mark that
  // SetMark left in it or, where it keeps none, by the time of its start. Empty: neither is known.
  absl::StatusOr<std::string> Mark();
  absl::Status SetMark(const std::string& text);

 private:
  absl::StatusOr<std::string> Ask(const std::string& path, const std::string* body, double seconds,
                                  const Cancelled& cancelled = {});
  absl::StatusOr<std::string> AskDevelopment(const std::string& path, const std::string* body,
                                             double seconds);

  const std::string url_;
  const double call_seconds_, push_seconds_;
  EndSign end_;
};

// The value of process_start_time_seconds in the text of /metrics; empty: it has none. Pure.
std::string StartTimeOf(const std::string& metrics);

}  // namespace tandem::trainer
