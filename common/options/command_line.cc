#include "common/options/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <utility>

#include "common/base/exit_codes.h"
#include "common/base/printable.h"
#include "common/options/nearest_name.h"

namespace tandem {
namespace {

// The command that was being parsed when parsing stopped.
CLI::App* DeepestCommand(CLI::App& app) {
  CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().back();
  return at;
}

const CLI::App& Root(const CLI::App& command) {
  return command.get_parent() == nullptr ? command : Root(*command.get_parent());
}

std::vector<std::string> FlagNames(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::vector<const CLI::App*> Children(const CLI::App& command) {
  return command.get_subcommands([](const CLI::App*) { return true; });
}

// Looks among the subcommands of `command` first and then among all commands by their full names:
// "attribute" is also the last word of "tandem drift attribute".
std::string NearestCommand(const CLI::App& command, const std::string& wrong) {
  std::vector<std::string> names;
  for (const CLI::App* child : Children(command)) names.push_back(child->get_name());
  std::string nearest = NearestIfClose(wrong, names);
  if (!nearest.empty()) return nearest;
  names.clear();
  const std::function<void(const CLI::App&)> collect = [&](const CLI::App& at) {
    for (const CLI::App* child : Children(at)) {
      if (child->get_name() == wrong) names.push_back(FullName(*child));
      collect(*child);
    }
  };
  collect(Root(command));
  return names.empty() ? "" : names.front();
}

// A guess why an unknown argument was written, if there is one.
std::string HintFor(const CLI::App& command, const std::string& extra) {
  const std::vector<std::string> flags = FlagNames(command);
  const auto has = [&](const char* flag) { return std::ranges::count(flags, flag) > 0; };
  if (has("--set") && extra.find('=') != std::string::npos) {
    return ": every setting takes a --set of its own, --set " + extra;
  }
  if (has("--json-out")) return " (--json takes no file: --json-out FILE writes one)";
  return "";
}

// By default, a CLI11 flag with several values takes every word up to the next flag: `--set a=1
// b=2` would be two settings and `--servers a:1 RUN` two servers. Here a flag takes one word;
// several values are joined by commas, or the flag is repeated.
void TakeOneWordAFlag(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    if (!option->get_positional()) option->allow_extra_args(false);
  }
  for (CLI::App* child : command.get_subcommands([](const CLI::App*) { return true; })) {
    TakeOneWordAFlag(*child);
  }
}

void ExplainExtra(CLI::App& app, const std::string& extra) {
  const CLI::App& command = *DeepestCommand(app);
  const bool is_flag = extra.starts_with("-");
  const bool is_command = !is_flag && !Children(command).empty();
  const std::string wrong = is_flag ? extra.substr(0, extra.find('=')) : extra;
  const char* kind = is_flag ? "flag" : is_command ? "command" : "argument";
  std::string hint;
  if (is_flag || is_command) {
    hint = is_flag ? NearestIfClose(wrong, FlagNames(command)) : NearestCommand(command, wrong);
    if (!hint.empty()) hint = "; did you mean " + hint + "?";
  } else {
    hint = HintFor(command, extra);
  }
  std::fprintf(stderr, "%s: unknown %s %s%s\n", FullName(command).c_str(), kind,
               Printable(wrong).c_str(), Printable(hint).c_str());
}

}  // namespace

std::string FullName(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent == nullptr ? command.get_name() : FullName(*parent) + " " + command.get_name();
}

std::optional<int> ParseCommandLine(CLI::App& app, std::vector<std::string> arguments) {
  std::ranges::reverse(arguments);  // CLI11 takes arguments in reverse order
  TakeOneWordAFlag(app);
  try {
    app.parse(std::move(arguments));
    CLI::App* const command = DeepestCommand(app);
    if (Children(*command).empty()) return std::nullopt;
    std::fputs(app.help().c_str(), stdout);
    return ToInt(ExitCode::kOk);
  } catch (const CLI::Success& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    const std::vector<std::string> extras = app.remaining(/*recurse=*/true);
    const std::string command = FullName(*DeepestCommand(app));
    if (!extras.empty()) {
      ExplainExtra(app, extras.front());
    } else {
      std::fprintf(stderr, "%s: %s\n", command.c_str(), PrintableLines(e.what()).c_str());
    }
    std::fprintf(stderr, "%s --help lists what there is\n", command.c_str());
    return ToInt(ExitCode::kUsage);
  }
}

std::optional<int> ParseCommandLine(CLI::App& app, int argc, char** argv) {
  return ParseCommandLine(app, std::vector<std::string>(argv + 1, argv + argc));
}

void EndHelp(CLI::App& command, const std::string& notes, const std::string& example) {
  command.footer(notes + (notes.empty() ? "" : "\n\n") + "Example:\n  " + example);
}

void AddSetFlag(CLI::App& command, std::vector<std::string>& sets, const std::string& help) {
  command.add_option("--set", sets, "KEY=VALUE " + help + "; once for each setting")
      ->take_all()
      ->expected(1);
}

void PrintFailure(const std::string& program, const absl::Status& status) {
  std::fflush(stdout);  // so that the error comes last where both go into one file
  std::fprintf(stderr, "%s: %s\n", program.c_str(),
               PrintableLines(std::string(status.message())).c_str());
}

}  // namespace tandem
