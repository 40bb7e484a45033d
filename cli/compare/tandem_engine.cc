#include "cli/compare/tandem_engine.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cli/io/subcommand.h"
#include "cli/model/model_input.h"
#include "cli/tools/generate.h"
#include "common/base/status_macros.h"
#include "common/model/numerics.h"
#include "rollout_server/engine/engine.h"

namespace tandem::cli {
namespace {

class TandemEngine : public ComparedEngine {
 public:
  TandemEngine(EngineSpec spec, int64_t capacity_tokens)
      : spec_(std::move(spec)), capacity_tokens_(capacity_tokens) {}

  absl::Status LoadWeights(const std::string& directory) override {
    engine_ = nullptr;
    TANDEM_RETURN_IF_ERROR(CheckModelDirectory(directory));
    TANDEM_ASSIGN_OR_RETURN(const std::string dtype, ChooseDType(directory, spec_.dtype));
    rollout::EngineOptions options;
    options.dtype = dtype == "bf16" ? ComputeDType::kBf16 : ComputeDType::kFp32;
    options.numerics = spec_.exact ? Numerics::kExact : Numerics::kFast;
    options.kv_capacity_tokens = std::max<int64_t>(capacity_tokens_, 4096);
    TANDEM_ASSIGN_OR_RETURN(engine_, rollout::Engine::Create(directory, options));
    engine_->DropInitialTensors();
    return absl::OkStatus();
  }

  EngineInfo Info() const override {
    return {.engine = spec_.exact ? "tandem exact" : "tandem",
            .version = VersionLine(),
            .dtype = engine_->weight_dtype() == DType::kBF16 ? "bfloat16" : "float32",
            .can_load_weights = true};
  }

  absl::StatusOr<std::vector<DrawnCompletion>> Sample(
      const std::vector<std::vector<int32_t>>& prompts, const EngineSampling& sampling) override {
    std::vector<rollout::GroupRequest> requests(prompts.size());
    for (size_t i = 0; i < prompts.size(); ++i) {
      requests[i].prompt = prompts[i];
      requests[i].num_completions = sampling.num_completions;
      requests[i].sampling = {.temperature = static_cast<float>(sampling.temperature),
                              .top_k = sampling.top_k,
                              .top_p = static_cast<float>(sampling.top_p),
                              .max_new_tokens = sampling.max_new_tokens,
                              .seed = sampling.seed + i};
    }
    std::vector<DrawnCompletion> drawn;
    TANDEM_RETURN_IF_ERROR(GenerateAll(
        *engine_, std::move(requests),
        [&](size_t prompt, std::vector<rollout::FinishedCompletion> group) {
          for (rollout::FinishedCompletion& one : group) {
            const bool cut = one.finish_reason == rollout::FinishReason::kLength;
            drawn.push_back(
                {.prompt = static_cast<int64_t>(prompt),
                 .token_ids = std::move(one.token_ids),
                 .logprobs = sampling.raw ? one.raw_logprobs : std::move(one.behaviour_logprobs),
                 .raw_logprobs = std::move(one.raw_logprobs),
                 .entropies = std::move(one.entropies),
                 .finish_reason = cut ? "length" : "stop"});
          }
        }));
    return drawn;
  }

  absl::StatusOr<std::vector<RowScore>> Score(const std::vector<RowToScore>& rows,
                                              double temperature) override {
    std::vector<rollout::ScoreSequence> sequences;
    for (const RowToScore& row : rows) sequences.push_back({row.token_ids, row.prompt_length});
    rollout::ScoreOptions how;
    how.temperature = static_cast<float>(temperature);
    TANDEM_ASSIGN_OR_RETURN(const auto scored, engine_->Score(sequences, how));
    std::vector<RowScore> scores;
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto begin = static_cast<std::ptrdiff_t>(rows[i].prompt_length);
      scores.push_back(
          {.logprobs = {scored[i].logprobs.begin() + begin, scored[i].logprobs.end()},
           .entropies = {scored[i].entropies.begin() + begin, scored[i].entropies.end()}});
    }
    return scores;
  }

 private:
  const EngineSpec spec_;
  const int64_t capacity_tokens_;
  std::unique_ptr<rollout::Engine> engine_;  // null only after a failed load
};

}  // namespace

absl::StatusOr<std::unique_ptr<ComparedEngine>> StartTandemEngine(const EngineSpec& spec,
                                                                  const std::string& model,
                                                                  int64_t capacity_tokens) {
  auto engine = std::make_unique<TandemEngine>(spec, capacity_tokens);
  TANDEM_RETURN_IF_ERROR(engine->LoadWeights(model));
  return engine;
}

}  // namespace tandem::cli
