#include "common/base/command_line.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "common/base/exit_codes.h"
#include "common/base/nearest_name.h"

namespace tandem {
namespace {

// The command that was being read when parsing stopped.
CLI::App* DeepestCommand(CLI::App& app) {
  CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().back();
  return at;
}

// "tandem drift phase": what a user has to write to get at the command.
std::string FullName(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent == nullptr ? command.get_name() : FullName(*parent) + " " + command.get_name();
}

std::vector<std::string> FlagNames(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::vector<std::string> CommandNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(sub->get_name());
  }
  return names;
}

void ExplainExtra(CLI::App& app, const std::string& extra) {
  CLI::App* const command = DeepestCommand(app);
  const bool is_flag = extra.starts_with("-");
  const std::string wrong = extra.substr(0, extra.find('='));
  const bool is_command = !is_flag && command == &app;
  const char* kind = is_flag ? "flag" : is_command ? "command" : "argument";
  const std::string nearest =
      NearestIfClose(wrong, is_command ? CommandNames(app) : FlagNames(*command));
  std::fprintf(stderr, "%s: unknown %s %s%s%s%s\n", FullName(*command).c_str(), kind, wrong.c_str(),
               nearest.empty() ? "" : "; did you mean ", nearest.c_str(),
               nearest.empty() ? "" : "?");
}

}  // namespace

std::optional<int> ParseCommandLine(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::Success& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    const std::vector<std::string> extras = app.remaining(/*recurse=*/true);
    if (!extras.empty()) {
      ExplainExtra(app, extras.front());
    } else {
      std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), e.what());
    }
    std::fprintf(stderr, "%s --help lists what there is\n", FullName(*DeepestCommand(app)).c_str());
    return ToInt(ExitCode::kUsage);
  }
}

}  // namespace tandem
