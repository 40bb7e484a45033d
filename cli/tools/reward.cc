// tandem reward: tries a reward function in Python alone, without a run.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cli/data/data_flags.h"
#include "cli/io/json_lines.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "cli/model/model_input.h"
#include "cli/tools/generate.h"
#include "cli/tools/rewarded_group.h"
#include "cli/tools/tried_reward.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/options/command_line.h"
#include "common/tables/row_reader.h"
#include "trainer/data/row_parser.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

struct TryFlags {
  std::string function, data;
  std::string completions, rollouts, model;  // where completions come from; all empty: the answers
  int64_t limit = 8;
  std::vector<std::string> kwargs;
  std::string form = "auto";
  trainer::PythonRewardOptions python;
  int32_t group_size = 4;
  rollout::SamplingParams sampling{.max_new_tokens = 128};
  std::string dtype;  // empty: that of the weights
  int64_t threads = 0;
  trainer::DataOptions prompts;
  JsonFlags json;
};

// What a function does not get that it would get in a run.
constexpr char kWithoutIds[] = "; without a tokenizer, so that their completion_ids are empty";
constexpr char kInOneMessage[] =
    "; those of several turns each as one message, with what the environment wrote";

// A completion before its reward.
struct Candidate {
  std::string text;
  std::vector<int32_t> ids;
  bool has_turns = false;
};

// A line of the data and what is asked about it.
struct RowToTry {
  int64_t line = 0;
  std::string source;  // the line itself
  trainer::PromptRow row;
  std::vector<Candidate> candidates;
};

// The text of a prompt to show: of messages the last.
std::string ShownPrompt(const trainer::PromptRow& row) {
  if (row.messages_json.empty()) return row.text;
  const auto messages = nlohmann::json::parse(row.messages_json, nullptr, false);
  return messages.back().value("content", "");
}

// Rows of the data, all of them, without completions.
absl::StatusOr<std::vector<RowToTry>> ReadRows(const TryFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const auto parser,
                          trainer::RowParser::Create(flags.prompts, /*needs_answer=*/false));
  const DatasetPart part = {.split = flags.prompts.split, .subset = flags.prompts.subset};
  TANDEM_ASSIGN_OR_RETURN(const auto reader, RowReader::Open(flags.data, part));
  std::vector<RowToTry> rows;
  while (true) {
    TANDEM_ASSIGN_OR_RETURN(const auto read, reader->Next());
    if (!read.has_value()) break;
    RowToTry row = {.line = read->number + 1, .source = std::string(read->json)};
    TANDEM_ASSIGN_OR_RETURN(row.row, parser.Parse(row.source, read->place));
    rows.push_back(std::move(row));
  }
  if (rows.empty()) return InvalidArgument(flags.data, ": no row of data");
  return rows;
}

void Cut(const TryFlags& flags, std::vector<RowToTry>* rows) {
  if (flags.limit > 0 && std::ssize(*rows) > flags.limit) {
    rows->resize(static_cast<size_t>(flags.limit));
  }
}

// Completions of --completions-file, a line for each line of the data.
absl::Status TakeCompletions(const TryFlags& flags, std::vector<RowToTry>* rows) {
  TANDEM_ASSIGN_OR_RETURN(const auto reader, JsonLineReader::Open(flags.completions));
  size_t next = 0;
  TANDEM_RETURN_IF_ERROR(reader->ForEach([&](const nlohmann::json& line) -> absl::Status {
    if (next >= rows->size()) return absl::OkStatus();
    std::vector<Candidate>& candidates = (*rows)[next++].candidates;
    const auto many = line.find("completions");
    const auto one = line.find("completion");
    const nlohmann::json texts = many != line.end()  ? *many
                                 : one != line.end() ? nlohmann::json::array({*one})
                                                     : nlohmann::json();
    const auto is_text = [](const nlohmann::json& text) { return text.is_string(); };
    if (!texts.is_array() || texts.empty() || !std::ranges::all_of(texts, is_text)) {
      return InvalidArgument(
          "want {\"completion\": text} or {\"completions\": [text, ..]} about the line of --data "
          "with the same number");
    }
    for (const auto& text : texts) candidates.push_back({.text = text.get<std::string>()});
    return absl::OkStatus();
  }));
  rows->resize(next);
  Cut(flags, rows);
  if (rows->empty()) return InvalidArgument(flags.completions, ": no completion");
  return absl::OkStatus();
}

// The file of the last step below a folder of rollouts; a file is itself.
absl::StatusOr<std::string> RolloutFile(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return path;
  std::map<int64_t, std::string> by_step;
  for (const auto& entry : fs::directory_iterator(path, ignored)) {
    const std::string stem = entry.path().stem().string();
    int64_t step = 0;
    if (stem.starts_with("step_") && absl::SimpleAtoi(stem.substr(5), &step)) {
      by_step[step] = entry.path().string();
    }
  }
  if (by_step.empty()) {
    return NotFound(path, ": no step_N.jsonl; want runs/NAME/rollouts or a file of it");
  }
  return by_step.rbegin()->second;
}

// Groups of --rollouts, which name their line of the data.
absl::Status TakeRollouts(const TryFlags& flags, std::vector<RowToTry>* rows) {
  TANDEM_ASSIGN_OR_RETURN(const std::string file, RolloutFile(flags.rollouts));
  TANDEM_ASSIGN_OR_RETURN(const auto reader, JsonLineReader::Open(file));
  std::vector<RowToTry> taken;
  TANDEM_RETURN_IF_ERROR(reader->ForEach([&](const nlohmann::json& line) -> absl::Status {
    const auto of_data = line.find("prompt_index");
    const bool has_index = of_data != line.end() && of_data->is_number_integer();
    const int64_t index = has_index ? of_data->get<int64_t>() : -1;
    const auto row = std::ranges::find(*rows, index + 1, &RowToTry::line);
    const auto completions = line.find("completions");
    if (row == rows->end() || completions == line.end() || !completions->is_array()) {
      return InvalidArgument("a group of line ", index + 1, " of the data, which ", flags.data,
                             " does not have: name the data of that run");
    }
    RowToTry group = {.line = row->line, .source = row->source, .row = row->row};
    for (const auto& completion : *completions) {
      TANDEM_ASSIGN_OR_RETURN(std::string text, TextField(completion, "text"));
      TANDEM_ASSIGN_OR_RETURN(std::vector<int32_t> ids, IdsField(completion, "token_ids"));
      group.candidates.push_back({.text = std::move(text),
                                  .ids = std::move(ids),
                                  .has_turns = completion.contains("segments")});
    }
    taken.push_back(std::move(group));
    return absl::OkStatus();
  }));
  *rows = std::move(taken);
  Cut(flags, rows);
  if (rows->empty()) return InvalidArgument(file, ": no group");
  return absl::OkStatus();
}

// Completions of a model.
absl::Status SampleCompletions(TryFlags& flags, std::vector<RowToTry>* rows) {
  TANDEM_RETURN_IF_ERROR(AsUsageError(rollout::ValidateSampling(flags.sampling)));
  TANDEM_RETURN_IF_ERROR(FindModel(&flags.model));
  TANDEM_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(flags.model));
  TANDEM_RETURN_IF_ERROR(BoundPrompts(config, flags.sampling.max_new_tokens, flags.prompts));
  TANDEM_ASSIGN_OR_RETURN(flags.dtype, ChooseDType(flags.model, flags.dtype));
  TANDEM_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(flags.model));
  TANDEM_ASSIGN_OR_RETURN(const auto source,
                          trainer::PromptSource::Open(flags.data, flags.prompts, 0, *tokenizer));
  size_t count = source->prompts().size();
  if (flags.limit > 0) count = std::min(count, static_cast<size_t>(flags.limit));
  std::vector<rollout::GroupRequest> requests;
  for (size_t i = 0; i < count; ++i) {
    const auto& ids = source->prompts()[i].token_ids();
    rollout::GroupRequest request;
    request.prompt.assign(ids.begin(), ids.end());
    request.num_completions = flags.group_size;
    request.sampling = flags.sampling;
    request.sampling.seed = flags.sampling.seed + i;
    requests.push_back(std::move(request));
  }
  TANDEM_ASSIGN_OR_RETURN(const auto engine,
                          CreateEngineFor(flags.model, flags.dtype, flags.threads, requests));
  std::vector<RowToTry> sampled;
  TANDEM_RETURN_IF_ERROR(
      GenerateAll(*engine, std::move(requests),
                  [&](size_t i, std::vector<rollout::FinishedCompletion> completions) {
                    // Prompts that are too long were left out, so that a prompt is found by its line.
                    const int64_t line = source->prompts()[i].index() + 1;
                    RowToTry row = *std::ranges::find(*rows, line, &RowToTry::line);
                    for (rollout::FinishedCompletion& completion : completions) {
                      row.candidates.push_back(
                          {.text = completion.text, .ids = std::move(completion.token_ids)});
                    }
                    sampled.push_back(std::move(row));
                  }));
  *rows = std::move(sampled);
  return absl::OkStatus();
}

bool HasTurns(const std::vector<RowToTry>& rows) {
  return std::ranges::any_of(rows, [](const RowToTry& row) {
    return std::ranges::any_of(row.candidates, &Candidate::has_turns);
  });
}

// Fills the rows with completions. Returns where they come from, to show.
absl::StatusOr<std::string> FindCompletions(TryFlags& flags, std::vector<RowToTry>* rows) {
  if (!flags.completions.empty()) {
    TANDEM_RETURN_IF_ERROR(TakeCompletions(flags, rows));
    return absl::StrCat(flags.completions, kWithoutIds);
  }
  if (!flags.rollouts.empty()) {
    TANDEM_RETURN_IF_ERROR(TakeRollouts(flags, rows));
    return absl::StrCat(flags.rollouts, HasTurns(*rows) ? kInOneMessage : "");
  }
  if (!flags.model.empty()) {
    TANDEM_RETURN_IF_ERROR(SampleCompletions(flags, rows));
    return absl::StrCat(flags.group_size, " of ", flags.model, " for each row");
  }
  Cut(flags, rows);
  for (RowToTry& row : *rows) {
    row.candidates = {{.text = row.row.answer}, {.text = ""}};
  }
  return absl::StrCat(
      "the answer of the data, which should get the best reward, and an empty one, which should "
      "get the worst (--completions-file, --rollouts or --model for others)",
      kWithoutIds);
}

std::vector<trainer::RewardInput> InputsOf(const RowToTry& row) {
  std::vector<trainer::RewardInput> inputs;
  for (const Candidate& candidate : row.candidates) {
    inputs.push_back({.text = candidate.text,
                      .answer = row.row.answer,
                      .prompt = row.row.text,
                      .source_json = row.source,
                      .num_tokens = std::ssize(candidate.ids),
                      .token_ids = candidate.ids});
  }
  return inputs;
}

absl::StatusOr<trainer::RewardOptions> OptionsOf(const TryFlags& flags) {
  trainer::RewardOptions options;
  options.python = flags.python;
  options.python.functions = {flags.function.ends_with(".py") ? flags.function + ":score"
                                                              : flags.function};
  for (const std::string& kwarg : flags.kwargs) {
    const size_t equals = kwarg.find('=');
    if (equals == std::string::npos || equals == 0) {
      return InvalidArgument("--kwarg ", kwarg, ": want NAME=VALUE");
    }
    options.python.kwargs.emplace_back(kwarg.substr(0, equals), kwarg.substr(equals + 1));
  }
  options.python.completions = flags.form == "text"       ? trainer::CompletionForm::kText
                               : flags.form == "messages" ? trainer::CompletionForm::kMessages
                                                          : trainer::CompletionForm::kAuto;
  return options;
}

absl::Status TryReward(TryFlags& flags) {
  const auto options = OptionsOf(flags);
  if (!options.ok()) return AsUsageError(options.status());
  auto rewards = trainer::RewardFunction::Create(*options);
  if (!rewards.ok()) return AsUsageError(rewards.status());
  TANDEM_RETURN_IF_ERROR(CheckRowFlags(flags.prompts));
  TANDEM_ASSIGN_OR_RETURN(std::vector<RowToTry> rows, ReadRows(flags));
  TANDEM_RETURN_IF_ERROR(
      trainer::WithExitCode((*rewards)->Check(rows[0].source), ExitCode::kUsage));
  TriedReward tried = {.function = options->python.functions[0], .data = flags.data};
  TANDEM_ASSIGN_OR_RETURN(tried.completions_are, FindCompletions(flags, &rows));
  for (const RowToTry& row : rows) {
    const std::vector<trainer::Reward> scored = (*rewards)->Score(InputsOf(row));
    TriedRow shown = {.line = row.line, .prompt = ShownPrompt(row.row), .answer = row.row.answer};
    for (size_t i = 0; i < scored.size(); ++i) {
      shown.completions.push_back({row.candidates[i].text, scored[i]});
    }
    shown.seconds = (*rewards)->tally()->TakeNumbers().python_seconds;
    for (const auto& event : (*rewards)->tally()->TakeEvents()) {
      tried.tracebacks.push_back(event.message);
    }
    tried.rows.push_back(std::move(shown));
  }
  TANDEM_RETURN_IF_ERROR(PrintResult(flags.json, RewardTable(tried), RewardJson(tried).dump()));
  const RewardStatistics of = StatisticsOf(tried);
  if (of.num_failed == 0) return absl::OkStatus();
  return trainer::WithExitCode(FailedPrecondition(of.num_failed, " of ", of.num_completions,
                                                  " completions have no reward: ", tried.function,
                                                  " failed; the table says why"),
                               ExitCode::kBadModelOrData);
}

void AddCompletionFlags(CLI::App* sub, TryFlags& flags) {
  CLI::Option* const completions = sub->add_option(
      "--completions-file", flags.completions,
      "JSON lines {\"completion\": text} or {\"completions\": [text, ..]}, one for each line of "
      "--data");
  CLI::Option* const rollouts =
      sub->add_option("--rollouts", flags.rollouts,
                      "runs/NAME/rollouts (of it the last step) or one of its files: completions "
                      "that a run sampled from the prompts of --data")
          ->excludes(completions);
  sub->add_option("--model", flags.model,
                  "directory, or name on the Hub: completions that it samples")
      ->excludes(completions)
      ->excludes(rollouts);
  AddPositive(sub, "-n,--group-size", flags.group_size, "completions of each prompt, with --model");
  AddPositive(sub, "--temperature", flags.sampling.temperature, "logits are divided by it");
  AddPositive(sub, "--max-new-tokens", flags.sampling.max_new_tokens,
              "most tokens of a completion, stop token included");
  sub->add_option("--seed", flags.sampling.seed, "prompt i (from 0) is sampled with seed + i")
      ->capture_default_str();
  AddPromptFlags(sub, flags.prompts);
  AddWeightsDTypeFlag(sub, flags.dtype);
  AddThreadsFlag(sub, flags.threads);
}

}  // namespace

void AddRewardCommand(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<TryFlags>();
  CLI::App* sub = app.add_subcommand("reward", "Tries a reward function in Python alone");
  sub->add_option("function", flags->function,
                  "FILE.py:NAME or MODULE:NAME, as in trainer.reward.python; FILE.py means its "
                  "function score")
      ->required();
  sub->add_option("--data", flags->data, kDataHelp)->required();
  AddNonNegative(sub, "--limit", flags->limit, "only the first N rows; 0: all");
  AddCompletionFlags(sub, *flags);
  sub->add_option("--kwarg", flags->kwargs,
                  "NAME=VALUE, as in trainer.reward.python.kwargs; may be given several times")
      ->take_all()
      ->expected(1);
  AddChoice(sub, "--form", flags->form, {"auto", "text", "messages"},
            "what the function gets, as trainer.reward.python.completions");
  sub->add_option("--python", flags->python.interpreter,
                  "interpreter, as trainer.reward.python.interpreter");
  AddPositive(sub, "--timeout", flags->python.timeout_seconds,
              "seconds of the longest call, as trainer.reward.python.timeout_seconds");
  AddNonNegative(sub, "--memory-limit-mib", flags->python.memory_limit_mib,
                 "as trainer.reward.python.memory_limit_mib; 0: none");
  AddJsonFlags(sub, &flags->json);
  EndHelp(
      *sub,
      "Without --completions-file, --rollouts and --model the completions are the answers of the "
      "data and empty\nones: the best and the worst case. Exit code 3 where a completion has "
      "no reward because the\nfunction failed, 2 where it cannot be loaded.",
      "tandem reward my_reward.py:score --data train.jsonl");
  SetAction(*sub, chosen, [flags] { return Finish(TryReward(*flags)); });
}

}  // namespace tandem::cli
