// tandem ui: a local page that lists runs, follows them and compares them.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/io/subcommand.h"
#include "cli/ui/ui_server.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/options/command_line.h"
#include "common/process/stop_signal.h"

namespace tandem::cli {
namespace {

struct UiFlags {
  std::vector<std::string> roots;
  std::string listen = "127.0.0.1:6007";
};

int Ui(const UiFlags& flags) {
  for (const std::string& root : flags.roots) {
    std::error_code error;
    if (!std::filesystem::is_directory(root, error)) {
      return FailUsage(NotFound("no directory ", root, ": name a run, or a directory of runs"));
    }
  }
  const StopSignal stop;
  const auto server = ui::UiServer::Listen(flags.listen, flags.roots);
  if (!server.ok()) {
    const bool taken = absl::IsUnavailable(server.status());
    return FailUsage(taken ? InvalidArgument(server.status().message(),
                                             ": choose another --listen (port 0 picks a free one)")
                           : server.status());
  }
  const size_t colon = flags.listen.rfind(':');
  std::printf("http://%s:%d/  (Ctrl-C ends it)\n", flags.listen.substr(0, colon).c_str(),
              (*server)->port());
  std::fflush(stdout);
  while (!stop.WaitFor(std::chrono::milliseconds(200))) {
  }
  return ToInt(ExitCode::kOk);
}

}  // namespace

void AddUiCommand(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<UiFlags>();
  CLI::App* sub = app.add_subcommand(
      "ui", "A local page: lists runs, follows them live, compares them, and opens their reports");
  sub->add_option("runs", flags->roots,
                  "runs, or directories of runs; default: runs in the current directory")
      ->default_val(std::vector<std::string>{"runs"});
  sub->add_option("--listen", flags->listen, "HOST:PORT on loopback; port 0 picks a free one")
      ->capture_default_str();
  EndHelp(*sub, "", "tandem ui runs");
  SetAction(*sub, chosen, [flags] { return Ui(*flags); });
}

}  // namespace tandem::cli
