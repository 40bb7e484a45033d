// tandem environment: plays an environment by hand or by given turns, without a model and a run, and
// writes the prompts that an environment makes.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <future>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/data/data_flags.h"
#include "cli/io/output_file.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "cli/model/model_input.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/options/command_line.h"
#include "common/tables/row_reader.h"
#include "nlohmann/json.hpp"
#include "trainer/environments/environment_check.h"
#include "trainer/environments/environment_worker.h"

namespace tandem::cli {
namespace {

using nlohmann::ordered_json;
using trainer::EnvironmentReply;

struct PlayFlags {
  trainer::EnvironmentOptions environment;
  std::vector<std::string> kwargs;
  std::string row, data, model;
  int64_t line = 1;
  uint64_t seed = 0;
  std::vector<std::string> says;
  std::string prompts;  // --write-prompts
  int64_t count = 100;
  JsonFlags json;
};

// The row to play: that of --row, or of --data; an empty object without both.
absl::StatusOr<std::string> RowToPlay(const PlayFlags& flags) {
  if (!flags.row.empty()) {
    const ordered_json row = ordered_json::parse(flags.row, nullptr, /*allow_exceptions=*/false);
    if (row.is_object()) return flags.row;
    return AsUsageError(InvalidArgument("--row ", flags.row, ": want a JSON object, such as ",
                                        R"('{"secret": 7}')"));
  }
  if (flags.data.empty()) return std::string("{}");
  TANDEM_ASSIGN_OR_RETURN(const auto reader, RowReader::Open(flags.data, {}));
  for (int64_t line = 1;; ++line) {
    TANDEM_ASSIGN_OR_RETURN(const auto row, reader->Next());
    if (!row.has_value()) {
      return InvalidArgument(flags.data, " has ", line - 1, " rows, and --line is ", flags.line);
    }
    if (line == flags.line) return std::string(row->json);
  }
}

// The next turn: of --say, or else a line of standard input. None: there is no more.
std::optional<std::string> NextTurn(const PlayFlags& flags, size_t turn) {
  if (!flags.says.empty()) {
    if (turn >= flags.says.size()) return std::nullopt;
    return flags.says[turn];
  }
  std::string line;
  if (isatty(STDIN_FILENO) != 0) std::fprintf(stderr, "> ");
  if (!std::getline(std::cin, line)) return std::nullopt;
  return line;
}

// What the environment said, a message a line.
std::string ShownMessages(const std::string& messages_json) {
  std::string shown;
  for (const ordered_json& message : ordered_json::parse(messages_json)) {
    const auto content = message.find("content");
    const std::string text =
        content != message.end() && content->is_string() ? content->get<std::string>() : "";
    absl::StrAppend(&shown, "  ", message.value("role", "?"), ": ", text, "\n");
  }
  return shown;
}

ordered_json TurnJson(const std::string& text, const EnvironmentReply& reply) {
  ordered_json info = ordered_json::object();
  for (const auto& [name, value] : reply.info) info[name] = value;
  ordered_json turn = {{"text", text}, {"messages", ordered_json::parse(reply.messages_json)}};
  turn["reward"] = reply.reward.has_value() ? ordered_json(*reply.reward) : ordered_json();
  turn["done"] = reply.done;
  turn["info"] = std::move(info);
  turn["seconds"] = reply.seconds;
  return turn;
}

// Waits for the reply to what `ask` asks.
template <typename Ask>
absl::StatusOr<EnvironmentReply> ReplyTo(const Ask& ask) {
  auto reply = std::make_shared<std::promise<absl::StatusOr<EnvironmentReply>>>();
  auto future = reply->get_future();
  ask([reply](absl::StatusOr<EnvironmentReply> said) { reply->set_value(std::move(said)); });
  absl::StatusOr<EnvironmentReply> said = future.get();
  if (said.ok()) return said;
  return trainer::WithExitCode(said.status(), ExitCode::kBadModelOrData);
}

absl::Status Play(const PlayFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const std::string row, RowToPlay(flags));
  const std::string chat_template =
      flags.model.empty() ? "" : trainer::ReadChatTemplate(flags.model);
  const auto tools = trainer::CheckEnvironment(flags.environment, chat_template);
  if (!tools.ok()) return AsUsageError(tools.status());
  trainer::EnvironmentWorker worker(flags.environment, chat_template,
                                    [](const absl::Status&, const std::string& traceback) {
                                      std::fprintf(stderr, "%s\n", traceback.c_str());
                                    });
  constexpr int64_t kEpisode = 1;
  TANDEM_ASSIGN_OR_RETURN(
      const EnvironmentReply opened, ReplyTo([&](trainer::EnvironmentWorker::Done done) {
        worker.Open(kEpisode, {.row_json = row, .seed = flags.seed}, std::move(done));
      }));
  std::string text = tools->empty() ? "" : absl::StrCat("tools ", *tools, "\n");
  const std::string begins = ShownMessages(opened.messages_json);
  absl::StrAppend(&text, begins);
  if (flags.says.empty() && !flags.json.print) std::fputs(text.c_str(), stdout);
  ordered_json turns = ordered_json::array();
  double sum = 0;
  bool done = false;
  while (!done) {
    const auto said = NextTurn(flags, turns.size());
    if (!said.has_value()) break;
    trainer::TurnText turn = {.turn = static_cast<int32_t>(turns.size()) + 1, .text = *said};
    turn.is_last = turn.turn == flags.environment.max_turns;
    TANDEM_ASSIGN_OR_RETURN(const EnvironmentReply reply,
                            ReplyTo([&](trainer::EnvironmentWorker::Done to) {
                              worker.Step(kEpisode, turn, std::move(to));
                            }));
    turns.push_back(TurnJson(*said, reply));
    sum += reply.reward.value_or(0);
    done = reply.done || turn.is_last;
    std::string shown = flags.says.empty() ? "" : absl::StrCat("> ", *said, "\n");
    absl::StrAppend(&shown, ShownMessages(reply.messages_json));
    for (const auto& [name, value] : reply.info)
      absl::StrAppend(&shown, "  ", name, " ", value, "\n");
    if (reply.reward.has_value()) absl::StrAppend(&shown, "  reward ", *reply.reward, "\n");
    if (flags.says.empty() && !flags.json.print) std::fputs(shown.c_str(), stdout);
    text += shown;
  }
  const std::string end = absl::StrCat(done ? "the episode is over after " : "stopped after ",
                                       turns.size(), " turns, reward ", sum, "\n");
  ordered_json result = {{"row", ordered_json::parse(row)},
                         {"seed", flags.seed},
                         {"observation", ordered_json::parse(opened.messages_json)},
                         {"turns", std::move(turns)},
                         {"reward", sum},
                         {"done", done}};
  const bool was_shown = flags.says.empty();
  return PrintResult(flags.json, was_shown ? end : text + end,
                     result.dump(-1, ' ', false, ordered_json::error_handler_t::replace));
}

// 2 where the environment cannot be loaded, 3 where it gives no rows.
absl::StatusOr<std::vector<std::string>> RowsOf(const trainer::EnvironmentOptions& environment,
                                                int64_t count, int64_t first_seed) {
  auto rows = trainer::EnvironmentRows(environment, count, first_seed);
  if (rows.ok()) return rows;
  const bool is_loaded = absl::IsAborted(rows.status()) ||
                         absl::IsDeadlineExceeded(rows.status()) ||
                         absl::IsResourceExhausted(rows.status());
  return trainer::WithExitCode(rows.status(),
                               is_loaded ? ExitCode::kBadModelOrData : ExitCode::kUsage);
}

absl::Status WritePrompts(const PlayFlags& flags) {
  TANDEM_RETURN_IF_ERROR(CheckOutputFolder(flags.prompts));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> rows,
                          RowsOf(flags.environment, flags.count, static_cast<int64_t>(flags.seed)));
  std::string lines;
  for (const std::string& row : rows) absl::StrAppend(&lines, row, "\n");
  TANDEM_RETURN_IF_ERROR(WriteOutputFile(flags.prompts, lines));
  absl::PrintF("%s: %d prompts\n", flags.prompts, rows.size());
  return absl::OkStatus();
}

absl::Status PlayOrWrite(PlayFlags& flags) {
  for (const std::string& kwarg : flags.kwargs) {
    const size_t equals = kwarg.find('=');
    if (equals == std::string::npos || equals == 0) {
      return AsUsageError(InvalidArgument("--kwarg ", kwarg, ": want NAME=VALUE"));
    }
    flags.environment.kwargs.emplace_back(kwarg.substr(0, equals), kwarg.substr(equals + 1));
  }
  if (!HasEnvironment(flags.environment)) {
    return AsUsageError(InvalidArgument(
        "no environment: name a class as FILE.py:CLASS, or use --tools, --openenv or --verifiers"));
  }
  TANDEM_RETURN_IF_ERROR(AsUsageError(trainer::CheckOptions(flags.environment)));
  if (!flags.model.empty()) TANDEM_RETURN_IF_ERROR(FindModel(&flags.model));
  return flags.prompts.empty() ? Play(flags) : WritePrompts(flags);
}

void AddKinds(CLI::App* sub, PlayFlags& flags) {
  trainer::EnvironmentOptions& environment = flags.environment;
  sub->add_option("environment", environment.python,
                  "FILE.py:CLASS or MODULE:CLASS, as trainer.environment.python");
  sub->add_option("--tools", environment.tools,
                  "FILE.py:FUNCTION, as trainer.environment.tools; may be given several times")
      ->take_all()
      ->expected(1);
  sub->add_option("--openenv", environment.openenv,
                  "http://HOST:PORT, as trainer.environment.openenv");
  sub->add_option("--verifiers", environment.verifiers,
                  "id or FILE.py:load_environment, as trainer.environment.verifiers");
  sub->add_option("--kwarg", flags.kwargs,
                  "NAME=VALUE, as in trainer.environment.kwargs; may be given several times")
      ->take_all()
      ->expected(1);
  AddPositive(sub, "--max-turns", environment.max_turns, "as trainer.environment.max_turns");
  sub->add_option("--python", environment.interpreter,
                  "interpreter, as trainer.environment.interpreter");
  AddPositive(sub, "--timeout", environment.step_timeout_seconds,
              "seconds of the longest answer, as trainer.environment.step_timeout_seconds");
  AddNonNegative(sub, "--memory-limit-mib", environment.memory_limit_mib,
                 "as trainer.environment.memory_limit_mib; 0: none");
}

}  // namespace

void AddEnvironmentCommand(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<PlayFlags>();
  CLI::App* sub = app.add_subcommand("environment", "Plays an environment alone, without a model");
  AddKinds(sub, *flags);
  sub->add_option("--say", flags->says,
                  "a turn of the model; may be given several times. Without it, each line of "
                  "standard input is one")
      ->take_all()
      ->expected(1);
  CLI::Option* const row = sub->add_option("--row", flags->row, "row of the data, a JSON object");
  sub->add_option("--data", flags->data, kDataHelp)->excludes(row);
  AddPositive(sub, "--line", flags->line, "which row of --data, from 1");
  sub->add_option("--seed", flags->seed, "of the reset; a column seed of the row goes first")
      ->capture_default_str();
  sub->add_option("--model", flags->model,
                  "directory, or name on the Hub: tools are called in the format of its chat "
                  "template");
  sub->add_option("--write-prompts", flags->prompts,
                  "JSON lines to make: prompts for trainer.data, the first observations after "
                  "resets with the seeds --seed, --seed + 1, ..");
  AddPositive(sub, "--count", flags->count, "how many prompts to write");
  AddJsonFlags(sub, &flags->json);
  EndHelp(*sub, "Exit code 2 where the environment cannot be loaded, 3 where it fails as it plays.",
          "tandem environment examples/guess_number.py:GuessTheNumber --row '{\"secret\": 7}' "
          "--say 5 --say 7");
  SetAction(*sub, chosen, [flags] { return Finish(PlayOrWrite(*flags)); });
}

}  // namespace tandem::cli
