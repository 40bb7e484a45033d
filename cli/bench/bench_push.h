// What `tandem bench push` measures: weight pushes into rollout servers of this machine, by number
// of servers, transport and form. gRPC stays behind this header.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem::cli {

struct PushBench {
  std::string model;  // Hugging Face directory
  std::string dtype = "bf16";
  std::string device = "cpu";  // of the servers: "cpu", or "cuda", which they share
  std::vector<int64_t> servers = {1, 2, 4};
  std::vector<std::string> transports = {"stream", "collective"};
  double changed_share = 0.03;  // of the elements, by one unit in the last place, from push to push
  int64_t repeats = 5;
  int64_t load_groups = 0;  // asked of the first server meanwhile, 4 x 64 tokens each; 0: none
  std::string server_binary;
  std::string logs;  // directory
};

// One push: of the slowest server where there are several.
struct PushTimes {
  double seconds = 0;          // of all, from what the servers have to what they prove
  double send_seconds = 0;     // bytes on their way
  double verify_seconds = 0;   // deltas added, digests made
  double pack_seconds = 0;     // for the engine's kernels
  double pause_seconds = 0;    // no decode step could run
  double prepare_seconds = 0;  // on the trainer's side before: digests and deltas
  int64_t wire_bytes = 0;      // to one server
};

struct PushRow {
  int64_t servers = 1;
  std::string transport;
  bool is_delta = false;
  std::vector<PushTimes> pushes;
  // The longest time between two tokens of each completion, while pushes came one after the other.
  std::vector<double> token_gaps_ms;
};

struct PushBenchResult {
  int64_t dense_bytes = 0, num_parameters = 0;
  double loopback_bytes_per_second = 0;  // one TCP stream between two threads
  std::vector<PushRow> rows;
  std::vector<double> quiet_gaps_ms;  // without pushes
};

// Starts the servers, and ends them.
//   NOT_FOUND, INVALID_ARGUMENT  the model
//   INTERNAL                     a server ended, or a push failed (with its reason)
absl::StatusOr<PushBenchResult> RunPushBench(
    const PushBench& bench, const std::function<void(const std::string&)>& progress);

// Medians and spreads. Pure.
std::string ToText(const PushBenchResult& result);
std::string ToJson(const PushBenchResult& result);

}  // namespace tandem::cli
