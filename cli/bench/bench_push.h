// The measurement of `tandem bench push`: weight pushes (weight sync) to rollout servers on this
// machine, by number of servers, transport and form (dense or delta).
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
  std::string device = "cpu";  // of the servers: "cpu", or one shared "cuda" device
  std::vector<int64_t> servers = {1, 2, 4};
  std::vector<std::string> transports = {"stream", "collective"};
  double changed_share = 0.03;  // of elements that change between pushes, in their lowest bit
  int64_t repeats = 5;
  int64_t load_groups = 0;  // groups of 4 x 64 tokens that the first server samples meanwhile
  std::string server_binary;
  std::string logs;  // directory
};

// The times of one push; those of the slowest server if there are several.
struct PushTimes {
  double seconds = 0;          // the whole push, until the servers have proved delivery
  double send_seconds = 0;     // sending the bytes
  double verify_seconds = 0;   // adding deltas and computing digests
  double pack_seconds = 0;     // packing for the engine's kernels
  double pause_seconds = 0;    // no decode step could run
  double prepare_seconds = 0;  // digests and deltas in the trainer, before the push
  int64_t wire_bytes = 0;      // to one server
};

struct PushRow {
  int64_t servers = 1;
  std::string transport;
  bool is_delta = false;
  std::vector<PushTimes> pushes;
  // The longest time between two tokens of each completion during continuous pushes.
  std::vector<double> token_gaps_ms;
};

struct PushBenchResult {
  int64_t dense_bytes = 0, num_parameters = 0;
  double loopback_bytes_per_second = 0;  // of one TCP connection between two threads
  std::vector<PushRow> rows;
  std::vector<double> quiet_gaps_ms;  // token_gaps_ms without pushes
};

// Starts the servers, measures and stops the servers. `progress` gets a text about each phase.
//   NOT_FOUND, INVALID_ARGUMENT  the model cannot be read
//   INTERNAL                     a server ended, or a push failed (with its reason)
absl::StatusOr<PushBenchResult> RunPushBench(
    const PushBench& bench, const std::function<void(const std::string&)>& progress);

// Medians and ranges. Pure.
std::string ToText(const PushBenchResult& result);
std::string ToJson(const PushBenchResult& result);

}  // namespace tandem::cli
