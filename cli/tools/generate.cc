// tandem generate: generates completions for every input line with the rollout server's engine.
#include "cli/tools/generate.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/io/json_lines.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "cli/model/model_input.h"
#include "cli/tools/best_of.h"
#include "common/base/json.h"
#include "common/base/status_macros.h"
#include "common/options/command_line.h"

namespace tandem::cli {
namespace {

struct GenerateFlags {
  QuantisationOptions weights;
  std::string model;
  std::string input = "-";
  std::string dtype;  // empty: that of the weights
  Numerics numerics = Numerics::kFast;
  rollout::SamplingParams sampling{.max_new_tokens = 128};
  int32_t num_completions = 1;
  bool greedy = false;
  int64_t threads = 0;
  BestOfFlags best_of;
};

const char* FinishReasonName(rollout::FinishReason reason) {
  constexpr const char* kNames[] = {"stop", "length", "stop_string", "stopped_early"};
  return kNames[static_cast<size_t>(reason)];
}

std::string CompletionJson(const rollout::FinishedCompletion& completion) {
  return absl::StrCat("{\"ids\":", IdsToJson(completion.token_ids),
                      ",\"text\":", TextToJson(completion.text),
                      ",\"behaviour_logprobs\":", FloatsToJson(completion.behaviour_logprobs),
                      ",\"raw_logprobs\":", FloatsToJson(completion.raw_logprobs),
                      ",\"finish_reason\":\"", FinishReasonName(completion.finish_reason), "\"}");
}

void PrintGroup(const std::vector<rollout::FinishedCompletion>& completions) {
  const auto json = [](std::string* out, const rollout::FinishedCompletion& completion) {
    out->append(CompletionJson(completion));
  };
  PrintLine(absl::StrCat("{\"completions\":[", absl::StrJoin(completions, ",", json), "]}"));
}

// The completion that the reward model likes best, as the only one of the line.
absl::Status PrintBest(trainer::RewardScorer& scorer, const Tokenizer& tokenizer,
                       const std::vector<int32_t>& prompt,
                       const std::vector<rollout::FinishedCompletion>& completions) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text,
                          tokenizer.Decode(prompt, /*skip_special_tokens=*/false));
  TANDEM_ASSIGN_OR_RETURN(const BestCompletion best, ChooseBest(scorer, text, completions));
  PrintLine(absl::StrCat("{\"completions\":[", CompletionJson(completions[best.index]),
                         "],\"reward\":", JsonNumber(best.reward),
                         ",\"best_of\":", completions.size(), "}"));
  return absl::OkStatus();
}

// The input lines up to the end or to the first bad one, whose error is `bad_line`.
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
    return InvalidArgument("prompt of ", input.ids.size(), " tokens and --max-new-tokens ",
                           flags.sampling.max_new_tokens, " are over the model's context of ",
                           config.max_position_embeddings);
  }
  for (const int32_t id : input.ids) {
    if (id >= config.vocab_size) {
      return InvalidArgument("id ", id, " is outside the vocabulary of ", config.vocab_size);
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
  read.bad_line = reader->ForEach([&](const nlohmann::json& line) -> absl::Status {
    TANDEM_ASSIGN_OR_RETURN(read.requests.emplace_back(),
                            ParseLine(line, flags, read.requests.size(), *tokenizer, config));
    return absl::OkStatus();
  });
  return read;
}

absl::Status Generate(GenerateFlags& flags) {
  TANDEM_RETURN_IF_ERROR(AsUsageError(rollout::ValidateSampling(flags.sampling)));
  TANDEM_RETURN_IF_ERROR(FindModel(&flags.model));
  TANDEM_ASSIGN_OR_RETURN(const auto scorer, LoadBestOf(flags.best_of, flags.threads));
  if (scorer != nullptr) flags.num_completions = flags.best_of.n;
  TANDEM_ASSIGN_OR_RETURN(ReadRequests read, ReadInput(flags));
  if (read.requests.empty()) return read.bad_line;
  TANDEM_ASSIGN_OR_RETURN(const std::string dtype, ChooseDType(flags.model, flags.dtype));
  TANDEM_ASSIGN_OR_RETURN(const auto engine,
                          CreateEngineFor(flags.model, dtype, flags.threads, read.requests,
                                          flags.numerics, flags.weights));
  TANDEM_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(flags.model));
  const std::vector<rollout::GroupRequest> asked =
      scorer == nullptr ? std::vector<rollout::GroupRequest>() : read.requests;
  absl::Status failure;
  TANDEM_RETURN_IF_ERROR(
      GenerateAll(*engine, std::move(read.requests),
                  [&](size_t i, const std::vector<rollout::FinishedCompletion>& all) {
                    if (scorer == nullptr) return PrintGroup(all);
                    if (failure.ok())
                      failure = PrintBest(*scorer, *tokenizer, asked[i].prompt, all);
                  }));
  TANDEM_RETURN_IF_ERROR(failure);
  return read.bad_line;
}

void AddSamplingOptions(CLI::App* sub, GenerateFlags& flags) {
  rollout::SamplingParams& s = flags.sampling;
  AddNonNegative(sub, "--temperature", s.temperature, "logits are divided by it; 0 is greedy");
  AddNonNegative(sub, "--top-k", s.top_k, "keep the k most likely tokens; 0: all");
  AddShare(sub, "--top-p", s.top_p,
           "keep the smallest set of tokens with this total probability; 1: all");
  AddShare(sub, "--min-p", s.min_p,
           "keep tokens with at least this share of the likeliest token's probability; 0: all");
  AddPositive(sub, "--max-new-tokens", s.max_new_tokens,
              "most tokens of a completion, stop token included");
  AddNonNegative(sub, "--min-new-tokens", s.min_new_tokens,
                 "no stop token before this many tokens");
  sub->add_option("--stop", s.stop_strings, "stop string; may be given several times")
      ->take_all()
      ->expected(1);
  sub->add_option("--seed", s.seed, "line i (from 0) is sampled with seed + i")
      ->capture_default_str();
  CLI::Option* size =
      AddPositive(sub, "-n,--group-size", flags.num_completions, "completions of each line");
  AddBestOfFlags(sub, flags.best_of);
  sub->get_option("--best-of")->excludes(size);
  sub->add_flag("--greedy", flags.greedy, "always the likeliest token");
  sub->add_flag("--ignore-eos", s.ignore_eos, "do not stop at the model's end tokens");
}

// The worst case, with one spare block for the prompt and two for each completion.
int64_t TokensNeeded(const rollout::GroupRequest& request) {
  constexpr int64_t kBlock = 64;
  return static_cast<int64_t>(request.prompt.size()) + kBlock +
         request.num_completions * (request.sampling.max_new_tokens + 2 * kBlock);
}

}  // namespace

void AddGenerateCommand(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* sub =
      app.add_subcommand("generate", "Completions for each input line, generated in batches");
  sub->add_option("--model", flags->model, kModelFlagHelp)->required();
  sub->add_option("--input", flags->input, "JSON lines; - is standard input")
      ->capture_default_str();
  AddNumericsFlag(sub, flags->numerics);
  AddWeightsDTypeFlag(sub, flags->dtype);
  AddThreadsFlag(sub, flags->threads);
  AddWeightFlags(sub, flags->weights);
  AddSamplingOptions(sub, *flags);
  EndHelp(
      *sub,
      "Lines: {\"prompt\": ..} (as is), {\"messages\": [..]} (through the chat template) or\n"
      "{\"ids\": [..]} -> {\"completions\": [{\"ids\", \"text\", \"behaviour_logprobs\",\n"
      "\"raw_logprobs\", \"finish_reason\": stop | length | stop_string}, ..]}, in input order. "
      "With\n"
      "--best-of the one with the largest reward, and \"reward\" and \"best_of\" beside.",
      "echo '{\"prompt\":\"One and one is\"}' | tandem generate --model MODEL --max-new-tokens 8");
  SetAction(*sub, chosen, [flags] { return Finish(Generate(*flags)); });
}

absl::StatusOr<std::unique_ptr<rollout::Engine>> CreateEngineFor(
    const std::string& model, const std::string& dtype, int64_t num_threads,
    const std::vector<rollout::GroupRequest>& requests, Numerics numerics,
    const QuantisationOptions& weights) {
  rollout::EngineOptions options;
  options.quantised = weights;
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
