// tandem generate: completions of every input line, batched through the rollout server's engine.
#include "cli/tools/generate.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/io/json_lines.h"
#include "cli/io/subcommand.h"
#include "cli/model/model_input.h"
#include "cli/model/numerics_option.h"
#include "common/base/status_macros.h"
#include "common/options/command_line.h"

namespace tandem::cli {
namespace {

struct GenerateFlags {
  std::string model;
  std::string input = "-";
  std::string dtype;  // empty: that of the weights
  Numerics numerics = Numerics::kFast;
  rollout::SamplingParams sampling{.max_new_tokens = 128};
  int32_t num_completions = 1;
  bool greedy = false;
  int64_t threads = 0;
};

const char* FinishReasonName(rollout::FinishReason reason) {
  switch (reason) {
    case rollout::FinishReason::kStop:
      return "stop";
    case rollout::FinishReason::kLength:
      return "length";
    case rollout::FinishReason::kStopString:
      return "stop_string";
    case rollout::FinishReason::kStoppedEarly:
      return "stopped_early";
  }
  return "unknown";
}

void PrintGroup(const std::vector<rollout::FinishedCompletion>& completions) {
  std::string out = "{\"completions\":[";
  for (const rollout::FinishedCompletion& completion : completions) {
    absl::StrAppend(&out, completion.index > 0 ? "," : "",
                    "{\"ids\":", IdsToJson(completion.token_ids),
                    ",\"text\":", TextToJson(completion.text),
                    ",\"behaviour_logprobs\":", FloatsToJson(completion.behaviour_logprobs),
                    ",\"raw_logprobs\":", FloatsToJson(completion.raw_logprobs),
                    ",\"finish_reason\":\"", FinishReasonName(completion.finish_reason), "\"}");
  }
  PrintLine(absl::StrCat(out, "]}"));
}

// Input lines until the end or the first bad one, whose error lands in `bad_line`.
struct ReadRequests {
  std::vector<rollout::GroupRequest> requests;
  absl::Status bad_line;
};

absl::StatusOr<rollout::GroupRequest> ParseLine(const nlohmann::json& line,
                                                const GenerateFlags& flags, size_t line_index,
                                                const Tokenizer& tokenizer,
                                                const ModelConfig& config) {
  static constexpr const char* kKeys[] = {"prompt", "messages", "ids", "add_generation_prompt"};
  TANDEM_RETURN_IF_ERROR(CheckKeys(line, kKeys));
  TANDEM_ASSIGN_OR_RETURN(PromptInput input, ReadPrompt(line, tokenizer));
  if (input.ids.empty()) return absl::InvalidArgumentError("the prompt has no tokens");
  const int64_t worst = static_cast<int64_t>(input.ids.size()) + flags.sampling.max_new_tokens;
  if (worst > config.max_position_embeddings) {
    return absl::InvalidArgumentError(
        absl::StrCat("prompt of ", input.ids.size(), " tokens and --max-new-tokens ",
                     flags.sampling.max_new_tokens, " are over the model's context of ",
                     config.max_position_embeddings));
  }
  for (const int32_t id : input.ids) {
    if (id >= config.vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("id ", id, " is outside the vocabulary of ", config.vocab_size));
    }
  }
  rollout::GroupRequest request;
  request.prompt = std::move(input.ids);
  request.num_completions = flags.num_completions;
  request.sampling = flags.sampling;
  request.sampling.seed = flags.sampling.seed + line_index;
  if (flags.greedy) request.sampling.temperature = 0;
  return request;
}

absl::StatusOr<ReadRequests> ReadInput(const GenerateFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(flags.model));
  TANDEM_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(flags.model));
  TANDEM_ASSIGN_OR_RETURN(const auto reader, JsonLineReader::Open(flags.input));
  ReadRequests read;
  while (true) {
    const auto line = reader->Next();
    if (!line.ok()) {
      read.bad_line = line.status();
      return read;
    }
    if (!line->has_value()) return read;
    auto request = ParseLine(**line, flags, read.requests.size(), *tokenizer, config);
    if (!request.ok()) {
      read.bad_line = reader->At(request.status());
      return read;
    }
    read.requests.push_back(*std::move(request));
  }
}

absl::Status Generate(const GenerateFlags& flags) {
  TANDEM_RETURN_IF_ERROR(AsUsageError(rollout::ValidateSampling(flags.sampling)));
  TANDEM_RETURN_IF_ERROR(CheckModelDirectory(flags.model));
  TANDEM_ASSIGN_OR_RETURN(ReadRequests read, ReadInput(flags));
  if (!read.requests.empty()) {
    TANDEM_ASSIGN_OR_RETURN(const std::string dtype, ChooseDType(flags.model, flags.dtype));
    TANDEM_ASSIGN_OR_RETURN(const auto engine, CreateEngineFor(flags.model, dtype, flags.threads,
                                                               read.requests, flags.numerics));
    TANDEM_RETURN_IF_ERROR(
        GenerateAll(*engine, std::move(read.requests),
                    [](size_t, std::vector<rollout::FinishedCompletion> all) { PrintGroup(all); }));
  }
  return read.bad_line;
}

void AddSamplingOptions(CLI::App* sub, GenerateFlags& flags) {
  rollout::SamplingParams& s = flags.sampling;
  sub->add_option("--temperature", s.temperature, "logits are divided by it; 0 is greedy")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  sub->add_option("--top-k", s.top_k, "keep the k most likely tokens; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  sub->add_option("--top-p", s.top_p, "keep the smallest set of this probability; 1: all")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  sub->add_option("--min-p", s.min_p, "keep tokens of at least this share of the likeliest; 0: all")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  sub->add_option("--max-new-tokens", s.max_new_tokens,
                  "of a completion at most, stop token included")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  sub->add_option("--min-new-tokens", s.min_new_tokens, "no stop token before this many")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  sub->add_option("--stop", s.stop_strings, "stop string; may be given several times")
      ->take_all()
      ->expected(1);
  sub->add_option("--seed", s.seed, "line i (from 0) draws with seed + i")->capture_default_str();
  sub->add_option("-n,--group-size", flags.num_completions, "completions of each line")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  sub->add_flag("--greedy", flags.greedy, "the likeliest token every time");
  sub->add_flag("--ignore-eos", s.ignore_eos, "the model's end tokens do not stop");
}

}  // namespace

void AddGenerateCommand(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* sub = app.add_subcommand("generate", "Completions of each line, batched");
  sub->add_option("--model", flags->model, "Hugging Face directory")->required();
  sub->add_option("--input", flags->input, "JSON lines; - is standard input")
      ->capture_default_str();
  AddNumericsOption(sub, flags->numerics);
  sub->add_option("--dtype", flags->dtype, "compute dtype; default: that of the weights")
      ->check(CLI::IsMember({"fp32", "bf16"}));
  sub->add_option("--threads", flags->threads, "0: the cores of the machine")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  AddSamplingOptions(sub, *flags);
  EndHelp(
      *sub,
      "Lines: {\"prompt\": ..} (as is), {\"messages\": [..]} (through the chat template) or\n"
      "{\"ids\": [..]} -> {\"completions\": [{\"ids\", \"text\", \"behaviour_logprobs\",\n"
      "\"raw_logprobs\", \"finish_reason\": stop | length | stop_string}, ..]}, in the order of "
      "the "
      "input.",
      "echo '{\"prompt\":\"One and one is\"}' | tandem generate --model MODEL --max-new-tokens 8");
  sub->callback([flags, &chosen] {
    chosen = [flags] {
      const absl::Status status = Generate(*flags);
      return status.ok() ? 0 : Fail(status);
    };
  });
}

}  // namespace tandem::cli
