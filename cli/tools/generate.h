// Generates completions for many prompts with one engine in this process. `tandem generate` and
// `tandem eval` use it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/quantisation_plan.h"
#include "rollout_server/engine/engine.h"

namespace tandem::cli {

// Creates an engine whose KV cache holds up to 32768 tokens of `requests`, and at least the largest
// one. `dtype` is "fp32" or "bf16". Errors are those of Engine::Create.
absl::StatusOr<std::unique_ptr<rollout::Engine>> CreateEngineFor(
    const std::string& model, const std::string& dtype, int64_t num_threads,
    const std::vector<rollout::GroupRequest>& requests, Numerics numerics = Numerics::kFast,
    const QuantisationOptions& weights = {});

// Runs the requests 0 to n-1 with continuous batching; their keys are replaced by the index. Calls
// `done` with the index and the completions of each request, in the order of the requests, as soon
// as it and all before it are done. Errors are those of Engine::Add and Engine::Step.
absl::Status GenerateAll(
    rollout::Engine& engine, std::vector<rollout::GroupRequest> requests,
    const std::function<void(size_t, std::vector<rollout::FinishedCompletion>)>& done);

}  // namespace tandem::cli
