// The measurement of `tandem bench train`: train steps of a run (server and trainer processes) and
// of another trainer on the same work.
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
  std::string dtype = "fp32";  // compute dtype of the trainer and of the peer
  std::string server_dtype = "bf16";
  std::string device = "cpu";      // of both sides: "cpu" or "cuda"
  std::string numerics = "fast";   // of both sides
  int64_t prompts = 8, group = 8;  // prompts per step, completions per prompt
  int64_t prompt_tokens = 24;      // approximate tokens of a prompt
  int64_t new_tokens = 16;         // most tokens of a completion
  int64_t steps = 3;               // measured, after one to warm up
  std::string peer;                // "trl", a script (tests/bench/peers/README.md), or empty
  std::string out;                 // directory of the run
};

// One train step: sampling the completions, training on the batch, delivering the weights.
struct TrainStepTimes {
  double step_seconds = 0;      // the whole step
  double generate_seconds = 0;  // until the last completion has arrived
  double train_seconds = 0;     // from completions to new weights
  int64_t trained_tokens = 0;
  int64_t row_tokens = 0;  // tokens that were computed, prompts included; 0: not known
};

struct TrainResult {
  std::string engine;  // "tandem", "trl (microbatch 16)"
  std::vector<TrainStepTimes> steps;
  int64_t peak_bytes = 0;  // memory of the training process, or on a device, its memory there
};

struct TrainBenchResult {
  // FLOPs of the forward pass of one token: of the model without embedding and head, and of the
  // head.
  double body_flops = 0, head_flops = 0;
  MachineLimits limits;  // of the CPU cores; 0 on a device
  TrainResult ours;
  std::optional<TrainResult> peer;
};

// Runs server and trainer, and then the peer. `progress` gets a text about each phase.
//   NOT_FOUND, INVALID_ARGUMENT  the model or the script of the peer cannot be used
//   INTERNAL                     a run failed (with the place of its logs)
absl::StatusOr<TrainBenchResult> RunTrainBench(
    const TrainBench& bench, const std::function<void(const std::string&)>& progress);

// The steps in a run's metrics.jsonl after the first `num_warm_up`.
//   INVALID_ARGUMENT  a line is not JSON, or has no times
absl::StatusOr<TrainResult> ReadTrainSteps(const std::string& metrics_path, int64_t num_warm_up);

// Medians, ranges and ratios. Forward and backward pass of a token count as three forward passes.
// Pure.
std::string ToText(const TrainBench& bench, const TrainBenchResult& result);
std::string ToJson(const TrainBench& bench, const TrainBenchResult& result);

}  // namespace tandem::cli
