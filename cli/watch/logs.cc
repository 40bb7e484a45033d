// tandem logs: lines of the processes of a run, from its logs/ or from their observe ports.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/io/json_lines.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "cli/watch/http_get.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/options/command_line.h"
#include "common/process/stop_signal.h"

namespace tandem::cli {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks(500);

struct LogsFlags {
  std::vector<std::string> sources;
  int64_t lines = 50;
  bool follow = false;
  double timeout = 5;
};

// A log file, or the observe port of a process.
struct Source {
  std::string name;  // printed before its lines if there are several sources
  bool is_port = false;
  std::string where;
  // What has been printed: the number of the last line of a port, or the offset in a file. -1:
  // nothing.
  int64_t seen = -1;
  std::string last_error;
};

// The log files of a run directory, sorted by name.
absl::StatusOr<std::vector<Source>> FilesOf(const std::string& run) {
  std::error_code error;
  std::vector<Source> files;
  for (const auto& entry : std::filesystem::directory_iterator(run + "/logs", error)) {
    if (entry.path().extension() != ".log") continue;
    files.push_back({.name = entry.path().stem().string(), .where = entry.path().string()});
  }
  if (error || files.empty()) {
    return NotFound(
        run,
        "/logs holds no log: name a directory that `tandem run` made, or HOST:PORT of a process");
  }
  std::ranges::sort(files, {}, &Source::name);
  return files;
}

absl::StatusOr<std::vector<Source>> OpenSources(const std::vector<std::string>& names) {
  std::vector<Source> sources;
  for (const std::string& name : names) {
    if (IsAddress(name)) {
      sources.push_back({.name = name, .is_port = true, .where = name});
    } else {
      TANDEM_ASSIGN_OR_RETURN(const std::vector<Source> files, FilesOf(name));
      sources.insert(sources.end(), files.begin(), files.end());
    }
  }
  return sources;
}

// Returns the whole lines after those that were seen, and the first time the last `count` lines.
std::vector<std::string> LookAtFile(Source& source, int64_t count) {
  std::error_code ignored;
  std::FILE* const file = std::fopen(source.where.c_str(), "rb");
  if (file == nullptr) return {};
  const auto size = static_cast<int64_t>(std::filesystem::file_size(source.where, ignored));
  if (size < source.seen) source.seen = 0;  // the file was replaced
  std::fseek(file, std::max<int64_t>(0, source.seen), SEEK_SET);
  std::string text;
  char block[65536];
  for (size_t n; (n = std::fread(block, 1, sizeof(block), file)) > 0;) text.append(block, n);
  std::fclose(file);
  const size_t whole = text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1;
  std::vector<std::string> lines = absl::StrSplit(text.substr(0, whole), '\n', absl::SkipEmpty());
  if (source.seen < 0 && lines.size() > static_cast<size_t>(count)) {
    lines.erase(lines.begin(), lines.end() - count);
  }
  source.seen = std::max<int64_t>(0, source.seen) + static_cast<int64_t>(whole);
  return lines;
}

absl::StatusOr<std::vector<std::string>> LookAtPort(Source& source, int64_t count, double timeout) {
  const std::string query = source.seen < 0
                                ? absl::StrCat("/logs?lines=", count)
                                : absl::StrCat("/logs?lines=1000000&after=", source.seen);
  TANDEM_ASSIGN_OR_RETURN(const HttpAnswer answer, HttpGet(source.where, query, timeout));
  if (answer.code != 200) {
    return Unavailable(source.where, ": HTTP ", answer.code);
  }
  std::vector<std::string> lines;
  source.seen = std::max<int64_t>(0, source.seen);
  for (const absl::string_view line : absl::StrSplit(answer.body, '\n', absl::SkipEmpty())) {
    const size_t space = line.find(' ');
    int64_t number = 0;
    if (space == absl::string_view::npos || !absl::SimpleAtoi(line.substr(0, space), &number))
      continue;
    source.seen = number;
    lines.emplace_back(line.substr(space + 1));
  }
  return lines;
}

// Prints the new lines. Returns false if the source cannot be read, and prints that error once.
bool Look(Source& source, const LogsFlags& flags, const std::string& prefix) {
  absl::StatusOr<std::vector<std::string>> lines =
      source.is_port ? LookAtPort(source, flags.lines, flags.timeout)
                     : LookAtFile(source, flags.lines);
  if (!lines.ok()) {
    const std::string error(lines.status().message());
    if (error != source.last_error) PrintFailure(lines.status());
    source.last_error = error;
    return false;
  }
  source.last_error.clear();
  for (const std::string& line : *lines) PrintLine(prefix + line);
  return true;
}

int Logs(const LogsFlags& flags) {
  auto sources = OpenSources(flags.sources);
  if (!sources.ok()) return Fail(sources.status());
  size_t width = 0;
  for (const Source& source : *sources) width = std::max(width, source.name.size());
  const StopSignal stop;
  bool all_read = true;
  do {
    all_read = true;
    for (Source& source : *sources) {
      std::string prefix;
      if (sources->size() > 1) {
        prefix = absl::StrCat(source.name, std::string(width - source.name.size(), ' '), " | ");
      }
      all_read &= Look(source, flags, prefix);
    }
  } while (flags.follow && !stop.WaitFor(kBetweenLooks));
  if (flags.follow) return ToInt(ExitCodeOfSignal(stop.signal()));
  return ToInt(all_read ? ExitCode::kOk : ExitCode::kServerLost);
}

}  // namespace

void AddLogsCommand(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<LogsFlags>();
  CLI::App* sub = app.add_subcommand("logs", "Log lines of a run's processes");
  sub->add_option("sources", flags->sources,
                  "run directories, and HOST:PORT of observe ports (server.observe_listen, "
                  "trainer.observe_listen)")
      ->required();
  AddNonNegative(sub, "-n,--lines", flags->lines,
                 "how many of the newest lines of each to print first");
  sub->add_flag("-f,--follow", flags->follow, "then print new lines until interrupted");
  AddPositive(sub, "--timeout", flags->timeout, "seconds allowed for each answer");
  EndHelp(*sub, "", "tandem logs -n 5 runs/NAME 127.0.0.1:9400");
  SetAction(*sub, chosen, [flags] { return Logs(*flags); });
}

}  // namespace tandem::cli
