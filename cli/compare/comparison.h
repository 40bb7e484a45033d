// Comparison: engine A draws tokens and says what it recorded of them, engine B scores them, and A
// scores what it drew. The result is a records file's contents (docs/records.md). Used by `tandem
// drift compare`. Use from one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/compare/compared_engine.h"
#include "drift_lab/records/records.h"

namespace tandem::cli {

struct ComparisonPlan {
  std::string model;                          // directory; version 0
  std::string weights_a, weights_b;           // version 0 of one side, where it is not `model`
  std::vector<std::string> steps_of_weights;  // versions 1, 2, ... of both engines
  std::vector<std::vector<int32_t>> prompts;  // drawn from in every version
  std::vector<int32_t> eos_token_ids;
  int64_t vocab_size = 0;
  EngineSampling sampling;
};

// Starts an engine with the weights of version 0.
using EngineStarter = std::function<absl::StatusOr<std::unique_ptr<ComparedEngine>>()>;
// What is being done ("vllm:bf16 samples"), and how many tokens or rows of how many are done.
using ComparisonProgress =
    std::function<void(const std::string& what, int64_t done, int64_t total)>;

struct ComparisonResult {
  drift::Records records;
  // Why a column that was asked for is not there, in a sentence each.
  std::vector<std::string> notes;
};

// The two engines do not run at the same time: A has ended before B is started.
//   UNIMPLEMENTED  steps_of_weights, and an engine that cannot load weights; B does not score
//   errors of the starters and of ComparedEngine
absl::StatusOr<ComparisonResult> Compare(const ComparisonPlan& plan, const EngineStarter& start_a,
                                         const EngineStarter& start_b,
                                         const ComparisonProgress& progress);

}  // namespace tandem::cli
