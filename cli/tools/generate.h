// GenerateAll: many prompts through one engine in this process, continuously batched. `tandem
// generate` and `tandem eval` use it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rollout_server/engine/engine.h"

namespace tandem::cli {

// An engine whose cache fits at least the largest of `requests` and up to 32768 tokens of them.
// `dtype` is "fp32" or "bf16". Errors: those of Engine::Create.
absl::StatusOr<std::unique_ptr<rollout::Engine>> CreateEngineFor(
    const std::string& model, const std::string& dtype, int64_t num_threads,
    const std::vector<rollout::GroupRequest>& requests, Numerics numerics = Numerics::kFast);

// Runs requests 0..n-1 (their keys are overwritten with the index) and hands over the completions
// of each, by index, in the order of the requests, as soon as all before it are done. Errors: those
// of Engine::Add and Engine::Step.
absl::Status GenerateAll(
    rollout::Engine& engine, std::vector<rollout::GroupRequest> requests,
    const std::function<void(size_t, std::vector<rollout::FinishedCompletion>)>& done);

}  // namespace tandem::cli
