#include <algorithm>
#include <utility>
#include <variant>

#include "cli/tools/generate.h"
#include "common/base/status_macros.h"

namespace tandem::cli {
namespace {

// Worst case, with a block to spare for the prompt and for each completion.
int64_t TokensNeeded(const rollout::GroupRequest& request) {
  constexpr int64_t kBlock = 64;
  return static_cast<int64_t>(request.prompt.size()) + kBlock +
         request.num_completions * (request.sampling.max_new_tokens + 2 * kBlock);
}

}  // namespace

absl::StatusOr<std::unique_ptr<rollout::Engine>> CreateEngineFor(
    const std::string& model, const std::string& dtype, int64_t num_threads,
    const std::vector<rollout::GroupRequest>& requests, Numerics numerics) {
  rollout::EngineOptions options;
  options.numerics = numerics;
  options.dtype = dtype == "bf16" ? ComputeDType::kBf16 : ComputeDType::kFp32;
  options.num_threads = num_threads;
  int64_t largest = 1024;
  int64_t total = 0;
  for (const rollout::GroupRequest& request : requests) {
    largest = std::max(largest, TokensNeeded(request));
    total += TokensNeeded(request);
    options.max_batch_sequences =
        std::max<int64_t>(options.max_batch_sequences, request.num_completions);
  }
  options.kv_capacity_tokens = std::max(largest, std::min<int64_t>(total, 32768));
  TANDEM_ASSIGN_OR_RETURN(auto engine, rollout::Engine::Create(model, options));
  engine->DropInitialTensors();
  return engine;
}

absl::Status GenerateAll(
    rollout::Engine& engine, std::vector<rollout::GroupRequest> requests,
    const std::function<void(size_t, std::vector<rollout::FinishedCompletion>)>& done) {
  const size_t num_requests = requests.size();
  std::vector<std::vector<rollout::FinishedCompletion>> results(num_requests);
  std::vector<bool> finished(num_requests, false);
  for (size_t i = 0; i < num_requests; ++i) {
    requests[i].key = static_cast<rollout::GroupKey>(i);
    TANDEM_RETURN_IF_ERROR(engine.Add(std::move(requests[i])));
  }
  size_t next = 0;
  while (engine.HasWork()) {
    TANDEM_ASSIGN_OR_RETURN(auto events, engine.Step());
    for (rollout::EngineEvent& event : events) {
      if (auto* one = std::get_if<rollout::CompletionFinished>(&event)) {
        results[static_cast<size_t>(one->key)].push_back(std::move(one->completion));
      } else if (const auto* group = std::get_if<rollout::GroupFinished>(&event)) {
        finished[static_cast<size_t>(group->key)] = true;
      } else if (const auto* failed = std::get_if<rollout::GroupFailed>(&event)) {
        return failed->status;
      }
    }
    for (; next < num_requests && finished[next]; ++next) {
      std::sort(results[next].begin(), results[next].end(),
                [](const auto& a, const auto& b) { return a.index < b.index; });
      done(next, std::move(results[next]));
    }
  }
  return absl::OkStatus();
}

}  // namespace tandem::cli
