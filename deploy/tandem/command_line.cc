#include "deploy/tandem/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <numeric>

#include "common/base/exit_codes.h"

namespace tandem::front {
namespace {

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

// The command that was being read when parsing stopped.
CLI::App* DeepestCommand(CLI::App& app) {
  CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().back();
  return at;
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
      NearestName(wrong, is_command ? CommandNames(app) : FlagNames(*command));
  std::fprintf(stderr, "tandem%s%s: unknown %s %s%s%s%s\n", command == &app ? "" : " ",
               command == &app ? "" : command->get_name().c_str(), kind, wrong.c_str(),
               nearest.empty() ? "" : "; did you mean ", nearest.c_str(),
               nearest.empty() ? "" : "?");
}

}  // namespace

std::string NearestName(std::string_view wrong, const std::vector<std::string>& names) {
  std::string nearest;
  size_t best = wrong.size() / 2 + 1;
  for (const std::string& name : names) {
    const size_t distance = EditDistance(wrong, name);
    if (distance < best) {
      best = distance;
      nearest = name;
    }
  }
  return nearest;
}

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
      std::fprintf(stderr, "tandem: %s\n", e.what());
    }
    const CLI::App* const command = DeepestCommand(app);
    std::fprintf(stderr, "tandem%s%s --help lists what there is\n", command == &app ? "" : " ",
                 command == &app ? "" : command->get_name().c_str());
    return ToInt(ExitCode::kUsage);
  }
}

}  // namespace tandem::front
