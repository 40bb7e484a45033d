// What `tandem bench train` measures: train steps of a real run (server and trainer processes) and
// of another trainer on the same work, and how it is shown.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tensor/machine_limits.h"

namespace tandem::cli {

struct TrainBench {
  std::string model;           // Hugging Face directory
  std::string dtype = "fp32";  // of the trainer's arithmetic, and the peer's
  std::string server_dtype = "bf16";
  std::string device = "cpu";      // of both sides: "cpu", or "cuda"
  std::string numerics = "fast";   // of both sides
  int64_t prompts = 8, group = 8;  // of a step
  int64_t prompt_tokens = 24;      // of each prompt, about
  int64_t new_tokens = 16;         // of each completion, at most
  int64_t steps = 3;               // after one to warm up
  std::string peer;                // "trl", a script (tests/bench/peers/README.md), or empty
  std::string out;                 // folder of the run
};

// One train step: the completions sampled, the batch trained on, the weights delivered.
struct TrainStepTimes {
  double step_seconds = 0;      // all of it
  double generate_seconds = 0;  // until the last completion is there
  double train_seconds = 0;     // from completions to new weights
  int64_t trained_tokens = 0;
  int64_t row_tokens = 0;  // that were computed for it, prompts included; 0: not known
};

struct TrainResult {
  std::string engine;  // "tandem", "trl (microbatch 16)"
  std::vector<TrainStepTimes> steps;
  int64_t peak_bytes = 0;  // of the training process; on a device, of its memory there
};

struct TrainBenchResult {
  // Multiply-adds of one token through the model, times two: without the embedding and the head,
  // and of the head.
  double body_flops = 0, head_flops = 0;
  MachineLimits limits;  // of the cores; on a device not measured: 0
  TrainResult ours;
  std::optional<TrainResult> peer;
};

// Runs the pair, then the peer.
//   NOT_FOUND, INVALID_ARGUMENT  the model or the peer's script
//   INTERNAL                     a run that failed (with where its logs are)
absl::StatusOr<TrainBenchResult> RunTrainBench(
    const TrainBench& bench, const std::function<void(const std::string&)>& progress);

// The steps of a run's metrics.jsonl but the first `num_warm_up`.
//   INVALID_ARGUMENT  a line that is not JSON, or has no times
absl::StatusOr<TrainResult> ReadTrainSteps(const std::string& metrics_path, int64_t num_warm_up);

// Medians, spreads and ratios. Forward and backward of a token are three times its forward. Pure.
std::string ToText(const TrainBench& bench, const TrainBenchResult& result);
std::string ToJson(const TrainBench& bench, const TrainBenchResult& result);

}  // namespace tandem::cli
