// tandem score: log-probs of given ids through either side's forward.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "deploy/tandem/json_lines.h"
#include "deploy/tandem/model_input.h"
#include "deploy/tandem/numerics_option.h"
#include "deploy/tandem/subcommand.h"
#include "deploy/tandem/trainer_scorer.h"
#include "rollout_server/engine/engine.h"

namespace tandem::front {
namespace {

struct ScoreFlags {
  std::string model;
  std::string input = "-";
  std::string engine = "rollout";
  std::string dtype = "fp32";
  std::string path = "decode";
  Numerics numerics = Numerics::kFast;
  float temperature = 1;
  int64_t max_tokens = 8192;
  int64_t threads = 0;
};

using ScoreFunction =
    std::function<absl::StatusOr<std::vector<float>>(const std::vector<int32_t>&)>;

absl::StatusOr<ScoreFunction> RolloutScore(const ScoreFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(flags.model));
  rollout::EngineOptions options;
  options.dtype =
      flags.dtype == "bf16" ? rollout::ComputeDType::kBf16 : rollout::ComputeDType::kFp32;
  options.kv_capacity_tokens = std::min(flags.max_tokens, config.max_position_embeddings) + 64;
  options.num_threads = flags.threads;
  options.numerics = flags.numerics;
  TANDEM_ASSIGN_OR_RETURN(auto created, rollout::Engine::Create(flags.model, options));
  std::shared_ptr<rollout::Engine> engine = std::move(created);
  engine->DropInitialTensors();
  const auto path =
      flags.path == "decode" ? rollout::ScorePath::kDecode : rollout::ScorePath::kPrefill;
  const float temperature = flags.temperature;
  return ScoreFunction([engine, path, temperature](
                           const std::vector<int32_t>& ids) -> absl::StatusOr<std::vector<float>> {
    TANDEM_ASSIGN_OR_RETURN(auto scores, engine->Score({ids}, temperature, path));
    return std::move(scores[0]);
  });
}

absl::StatusOr<ScoreFunction> TrainerScore(const ScoreFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(auto created, TrainerScorer::Create(flags.model, flags.dtype == "bf16",
                                                             flags.numerics));
  std::shared_ptr<TrainerScorer> scorer = std::move(created);
  const float temperature = flags.temperature;
  return ScoreFunction([scorer, temperature](const std::vector<int32_t>& ids) {
    return scorer->Score(ids, temperature);
  });
}

absl::Status Score(const ScoreFlags& flags) {
  TANDEM_RETURN_IF_ERROR(CheckModelDirectory(flags.model));
  TANDEM_ASSIGN_OR_RETURN(const auto reader, JsonLineReader::Open(flags.input));
  TANDEM_ASSIGN_OR_RETURN(const ScoreFunction score,
                          flags.engine == "trainer" ? TrainerScore(flags) : RolloutScore(flags));
  static constexpr const char* kKeys[] = {"ids"};
  while (true) {
    TANDEM_ASSIGN_OR_RETURN(const auto line, reader->Next());
    if (!line.has_value()) return absl::OkStatus();
    TANDEM_RETURN_IF_ERROR(reader->At(CheckKeys(*line, kKeys)));
    const auto ids = IdsField(*line, "ids");
    if (!ids.ok()) return reader->At(ids.status());
    const auto logprobs = score(*ids);
    if (!logprobs.ok()) return reader->At(logprobs.status());
    PrintLine(absl::StrCat("{\"logprobs\":", FloatsToJson(*logprobs, /*num_null=*/1), "}"));
  }
}

}  // namespace

void AddScoreCommand(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<ScoreFlags>();
  CLI::App* sub = app.add_subcommand("score", "Log-probs of given ids, by either side's forward");
  sub->add_option("--model", flags->model, "Hugging Face directory")->required();
  sub->add_option("--input", flags->input, "JSON lines; - is standard input")
      ->capture_default_str();
  sub->add_option(
         "--engine", flags->engine,
         "whose forward: the rollout server's (token by token through its KV cache) or the "
         "trainer's")
      ->check(CLI::IsMember({"rollout", "trainer"}))
      ->capture_default_str();
  sub->add_option("--dtype", flags->dtype, "compute dtype")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  AddNumericsOption(sub, flags->numerics);
  sub->add_option("--path", flags->path, "rollout only: decode token by token, or prefill at once")
      ->check(CLI::IsMember({"decode", "prefill"}))
      ->capture_default_str();
  sub->add_option("--temperature", flags->temperature, "logits are divided by it")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  sub->add_option("--max-tokens", flags->max_tokens,
                  "rollout only: longest line the cache can hold")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  sub->add_option("--threads", flags->threads, "0: the cores of the machine")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  sub->footer(
      "Lines: {\"ids\": [..]} -> {\"logprobs\": [null, ..]}; element t is of token t given\n"
      "the tokens before it.");
  sub->callback([flags, &chosen] {
    chosen = [flags] {
      const absl::Status status = Score(*flags);
      return status.ok() ? 0 : Fail(status);
    };
  });
}

}  // namespace tandem::front
