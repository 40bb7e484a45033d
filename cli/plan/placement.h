// Where the processes of a run are, whether they fit there, and what to change if they do not.
// Used by `tandem plan`. Pure; free of LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/plan/memory_plan.h"

namespace tandem::plan {

struct RunShape {
  std::string algorithm;
  TrainerShape trainer;
  std::optional<ServerShape> server;  // none: a supervised command
  int64_t servers = 0;
  int64_t least_row_tokens = 0;  // a row is not shorter than its longest group or example
  int64_t memory_bytes = 0;      // of one GPU, or on the CPU of the machine
  bool one_gpu = false;          // trainer and server share a GPU
};

// Equal GPUs, or on the CPU the machine.
struct Place {
  std::string name;
  int64_t count = 1;
  std::vector<ProcessMemory> processes;  // of each
  int64_t bytes = 0;                     // of each
  int64_t memory_bytes = 0;
  bool fits() const { return bytes <= memory_bytes; }
};
std::vector<Place> PlaceProcesses(const RunShape& run);

struct Advice {
  std::string option;  // "trainer.checkpoint_activations: true"
  int64_t saved_bytes = 0;
};
// Options that save memory where it does not fit, the largest saving first; none where all fit.
// Each is by itself, of the fullest place.
std::vector<Advice> Advise(const RunShape& run);

// "80G" and "80GiB" are 80 * 2^30 bytes, "80GB" is 80 * 10^9; K, M and T alike.
//   INVALID_ARGUMENT  another form, or not above 0
absl::StatusOr<int64_t> ParseBytes(const std::string& text);

std::string ToText(const RunShape& run);
std::string ToJson(const RunShape& run);

}  // namespace tandem::plan
