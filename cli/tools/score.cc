// tandem score: log-probs of given ids, computed by the forward pass of either side.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/io/json_lines.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "cli/model/local_policy.h"
#include "cli/model/model_input.h"
#include "common/base/status_macros.h"
#include "common/options/command_line.h"
#include "rollout_server/engine/engine.h"

namespace tandem::cli {
namespace {

struct ScoreFlags {
  QuantisationOptions weights;
  std::string model;
  std::string input = "-";
  std::string engine = "rollout";
  std::string dtype;  // empty: that of the weights
  std::string path = "decode";
  Numerics numerics = Numerics::kFast;
  rollout::ScoreOptions how;  // without the path
  bool details = false;
  int64_t max_tokens = 8192;
  int64_t threads = 0;
};

// An input line, and the function from it to the output line.
struct Question {
  std::vector<int32_t> ids;
  int64_t num_prompt_tokens = 0;
};
using ScoreFunction = std::function<absl::StatusOr<std::string>(const Question&)>;

// The first id and the prompt have no score.
size_t NumUnscored(const Question& question) {
  return static_cast<size_t>(std::max<int64_t>(1, question.num_prompt_tokens));
}

std::string Logprobs(const std::vector<float>& values, size_t nulls) {
  return absl::StrCat("{\"logprobs\":", FloatsToJson(values, nulls), "}");
}

std::string Details(const rollout::SequenceScore& score, size_t nulls) {
  std::string line = "{";
  for (const auto& [name, values] : {std::pair("logprobs", &score.logprobs),
                                     {"raw_logprobs", &score.raw_logprobs},
                                     {"entropies", &score.entropies},
                                     {"logprob_second_moments", &score.logprob_second_moments},
                                     {"squared_probs", &score.squared_probs},
                                     {"kept_mass", &score.kept_mass},
                                     {"margins", &score.margins}}) {
    absl::StrAppend(&line, "\"", name, "\":", FloatsToJson(*values, nulls), ",");
  }
  const std::vector<float> ranks(score.ranks.begin(), score.ranks.end());
  return absl::StrCat(line, "\"ranks\":", FloatsToJson(ranks, nulls), "}");
}

absl::StatusOr<ScoreFunction> RolloutScore(const ScoreFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(flags.model));
  rollout::EngineOptions options;
  options.dtype = flags.dtype == "bf16" ? ComputeDType::kBf16 : ComputeDType::kFp32;
  options.kv_capacity_tokens = std::min(flags.max_tokens, config.max_position_embeddings) + 64;
  options.num_threads = flags.threads;
  options.quantised = flags.weights;
  options.numerics = flags.numerics;
  TANDEM_ASSIGN_OR_RETURN(auto created, rollout::Engine::Create(flags.model, options));
  std::shared_ptr<rollout::Engine> engine = std::move(created);
  engine->DropInitialTensors();
  rollout::ScoreOptions how = flags.how;
  how.path = flags.path == "decode" ? rollout::ScorePath::kDecode : rollout::ScorePath::kPrefill;
  const bool details = flags.details;
  return ScoreFunction(
      [engine, how, details](const Question& question) -> absl::StatusOr<std::string> {
        TANDEM_ASSIGN_OR_RETURN(const auto scores,
                                engine->Score({{question.ids, question.num_prompt_tokens}}, how));
        return details ? Details(scores[0], NumUnscored(question))
                       : Logprobs(scores[0].logprobs, NumUnscored(question));
      });
}

absl::StatusOr<ScoreFunction> TrainerScore(const ScoreFlags& flags) {
  rollout::ScoreOptions plain;
  plain.temperature = flags.how.temperature;
  if (flags.details || flags.how.top_k != plain.top_k || flags.how.top_p != plain.top_p ||
      flags.how.min_p != plain.min_p || flags.how.arithmetic != plain.arithmetic) {
    return AsUsageError(absl::InvalidArgumentError(
        "--details, --top-k, --top-p, --min-p and the --*-bits are for the rollout engine: leave "
        "them out with --engine trainer"));
  }
  TANDEM_ASSIGN_OR_RETURN(
      const TrainerScorer scorer,
      LoadTrainerScorer(flags.model, flags.dtype == "bf16", flags.numerics, flags.weights));
  const float temperature = flags.how.temperature;
  return ScoreFunction([scorer,
                        temperature](const Question& question) -> absl::StatusOr<std::string> {
    TANDEM_ASSIGN_OR_RETURN(const std::vector<float> logprobs, scorer(question.ids, temperature));
    return Logprobs(logprobs, NumUnscored(question));
  });
}

absl::StatusOr<Question> ParseQuestion(const nlohmann::json& line) {
  static constexpr const char* kKeys[] = {"ids", "num_prompt_tokens"};
  TANDEM_RETURN_IF_ERROR(CheckKeys(line, kKeys));
  Question question;
  TANDEM_ASSIGN_OR_RETURN(question.ids, IdsField(line, "ids"));
  const auto prompt = line.find("num_prompt_tokens");
  if (prompt == line.end()) return question;
  const int64_t size = static_cast<int64_t>(question.ids.size());
  if (!prompt->is_number_integer() || prompt->get<int64_t>() < 0 ||
      prompt->get<int64_t>() >= size) {
    return InvalidArgument("\"num_prompt_tokens\": want an integer from 0 to ", size - 1);
  }
  question.num_prompt_tokens = prompt->get<int64_t>();
  return question;
}

absl::Status Score(ScoreFlags& flags) {
  TANDEM_RETURN_IF_ERROR(FindModel(&flags.model));
  TANDEM_ASSIGN_OR_RETURN(flags.dtype, ChooseDType(flags.model, flags.dtype));
  TANDEM_ASSIGN_OR_RETURN(const auto reader, JsonLineReader::Open(flags.input));
  TANDEM_ASSIGN_OR_RETURN(const ScoreFunction score,
                          flags.engine == "trainer" ? TrainerScore(flags) : RolloutScore(flags));
  return reader->ForEach([&](const nlohmann::json& line) -> absl::Status {
    TANDEM_ASSIGN_OR_RETURN(const Question question, ParseQuestion(line));
    TANDEM_ASSIGN_OR_RETURN(const std::string answer, score(question));
    PrintLine(answer);
    return absl::OkStatus();
  });
}

// The options of a score that can be changed one at a time.
void AddFactorOptions(CLI::App* sub, ScoreFlags& flags) {
  rollout::ScoreOptions& how = flags.how;
  AddChoice(sub, "--path", flags.path, {"decode", "prefill"},
            "rollout only: decode token by token (a prompt at once), or prefill at once");
  AddPositive(sub, "--temperature", how.temperature, "logits are divided by it");
  AddNonNegative(sub, "--top-k", how.top_k, "rollout only: under top-k; 0: off");
  AddShare(sub, "--top-p", how.top_p, "rollout only: under top-p; 1: off");
  AddShare(sub, "--min-p", how.min_p, "rollout only: under min-p; 0: off");
  const auto bits = [sub](const char* flag, int& field, const char* what) {
    AddRange(sub, flag, field, kLeastSignificandBits, kFp32SignificandBits,
             absl::StrCat("rollout only: significand bits kept of ", what).c_str());
  };
  bits("--body-bits", how.arithmetic.precision.body_bits,
       "the inputs of linear layers but the head");
  bits("--head-bits", how.arithmetic.precision.head_bits, "the head's inputs and the logits");
  bits("--kv-bits", how.arithmetic.precision.kv_bits, "keys and values");
  bits("--rotary-bits", how.arithmetic.precision.rotary_bits, "rotary angles");
}

}  // namespace

void AddScoreCommand(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<ScoreFlags>();
  CLI::App* sub =
      app.add_subcommand("score", "Log-probs of given ids, by the forward pass of either side");
  sub->add_option("--model", flags->model, kModelFlagHelp)->required();
  sub->add_option("--input", flags->input, "JSON lines; - is standard input")
      ->capture_default_str();
  AddChoice(sub, "--engine", flags->engine, {"rollout", "trainer"},
            "whose forward pass: the rollout server's (token by token through its KV cache) or the "
            "trainer's");
  AddWeightsDTypeFlag(sub, flags->dtype);
  AddNumericsFlag(sub, flags->numerics);
  AddFactorOptions(sub, *flags);
  sub->add_flag(
      "--details", flags->details,
      "rollout only: also raw log-probs, entropies, moments, retained probability mass, margins "
      "and ranks");
  AddPositive(sub, "--max-line-tokens", flags->max_tokens,
              "rollout only: the longest line that the KV cache can hold");
  AddThreadsFlag(sub, flags->threads);
  AddWeightFlags(sub, flags->weights);
  EndHelp(
      *sub,
      "Lines: {\"ids\": [..]} -> {\"logprobs\": [null, ..]}; element t is of token t given\n"
      "the tokens before it. \"num_prompt_tokens\": N beside the ids says that the first N were\n"
      "given: they are not scored. null is also what --top-k, --top-p or --min-p remove.",
      "echo '{\"ids\":[5,6,7]}' | tandem score --model MODEL --engine trainer");
  SetAction(*sub, chosen, [flags] { return Finish(Score(*flags)); });
}

}  // namespace tandem::cli
