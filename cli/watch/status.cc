// tandem status: roles, versions and queues of the processes of a run.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/io/child_process.h"
#include "cli/io/json_lines.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "cli/watch/http_get.h"
#include "cli/watch/process_status.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/options/command_line.h"

namespace tandem::cli {
namespace {

struct StatusFlags {
  std::vector<std::string> sources, servers, observe;
  double timeout = 2;
  rpc::TlsOptions tls;
};

// Prints the last restart of each process, from the launcher's record.
void PrintRestarts(const std::string& path) {
  std::map<std::string, nlohmann::json> last;
  for (const std::string& line : LastLines(path, 1000)) {
    nlohmann::json restart = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!restart.is_object()) continue;
    const std::string process = restart.value("process", "");
    last[process] = std::move(restart);
  }
  for (const auto& [process, restart] : last) {
    PrintLine(absl::StrCat("restart  ", process, "  ", restart.value("attempt", int64_t{0}), " of ",
                           restart.value("limit", int64_t{0}), "  after ",
                           restart.value("reason", ""), "  at step ",
                           restart.value("step", int64_t{0}), "  ", restart.value("at", "")));
  }
}

// Takes the addresses of servers from run.json, and prints one line about the trainer from the last
// line of metrics.jsonl.
absl::Status ReadRun(const std::string& run, std::vector<std::string>& servers) {
  std::error_code ignored;
  if (!std::filesystem::exists(run + "/run.json", ignored)) {
    return NotFound(
        run, " holds no run (no run.json there): name a run directory, or HOST:PORT of a process");
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadFile(run + "/run.json"));
  const nlohmann::json card = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!card.is_object()) {
    return InvalidArgument(run, "/run.json is not a JSON object");
  }
  if (card.contains("servers") && card["servers"].is_array()) {
    for (const nlohmann::json& server : card["servers"]) {
      if (server.is_object()) servers.push_back(server.value("address", ""));
    }
  }
  PrintRestarts(run + "/restarts.jsonl");
  const std::vector<std::string> last = LastLines(run + "/metrics.jsonl", 1);
  const nlohmann::json step =
      last.empty() ? nlohmann::json() : nlohmann::json::parse(last[0], nullptr, false);
  if (step.is_object()) {
    std::printf("trainer  step %lld  %.0f s after the start  reward %.3f\n",
                static_cast<long long>(step.value("step", int64_t{0})), step.value("time_s", 0.0),
                step.value("reward/mean", 0.0));
  }
  return absl::OkStatus();
}

// The port of `address` may be an observe port, as for `tandem logs`, or the port of a rollout
// service. It is asked as an observe port first, because a gRPC port closes an HTTP/1 connection at
// once.
absl::StatusOr<std::string> AskProcess(const std::string& address, double timeout,
                                       const rpc::Caller& caller) {
  const auto observed = AskObservePort(address, timeout);
  if (observed.ok()) return observed;
  const auto served = AskServer(address, timeout, caller);
  if (served.ok()) return absl::StrCat("server   ", *served);
  return Unavailable("process  ", served.status().message(), " (as a rollout server); ",
                     observed.status().message(), " (as an observe port)");
}

int Status(StatusFlags flags) {
  if (flags.sources.empty() && flags.servers.empty() && flags.observe.empty()) {
    return FailUsage(absl::InvalidArgumentError(
        "status of what? Name a run directory, or HOST:PORT of a process"));
  }
  std::vector<std::string> processes;
  for (const std::string& source : flags.sources) {
    if (IsAddress(source)) {
      processes.push_back(source);
    } else if (const absl::Status read = ReadRun(source, flags.servers); !read.ok()) {
      return Fail(read);
    }
  }
  const auto caller = LoadCaller(flags.tls);
  if (!caller.ok()) return FailUsage(caller.status());
  ExitCode code = ExitCode::kOk;
  const auto print = [&](const absl::StatusOr<std::string>& line, const char* before_line,
                         const char* before_error) {
    if (!line.ok()) code = ExitCode::kServerLost;
    PrintLine(line.ok() ? before_line + *line
                        : absl::StrCat(before_error, line.status().message()));
  };
  for (const std::string& address : processes) {
    print(AskProcess(address, flags.timeout, *caller), "", "");
  }
  for (const std::string& address : flags.observe) {
    print(AskObservePort(address, flags.timeout), "", "process  ");
  }
  for (const std::string& address : flags.servers) {
    print(AskServer(address, flags.timeout, *caller), "server   ", "server   ");
  }
  return ToInt(code);
}

}  // namespace

void AddStatusCommand(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<StatusFlags>();
  CLI::App* sub = app.add_subcommand("status", "Roles, versions and queues of a run's processes");
  sub->add_option(
      "sources", flags->sources,
      "run directories, whose servers are asked, and HOST:PORT of rollout servers or of "
      "observe ports\n"
      "(server.observe_listen, trainer.observe_listen)");
  sub->add_option("--servers", flags->servers, "HOST:PORT,HOST:PORT of rollout servers")
      ->delimiter(',');
  sub->add_option("--observe", flags->observe,
                  "HOST:PORT,HOST:PORT of observe ports, such as the trainer's")
      ->delimiter(',');
  AddPositive(sub, "--timeout", flags->timeout, "seconds allowed for each answer");
  AddCallerFlags(sub, &flags->tls);
  EndHelp(*sub, "The exit code is 4 if one of them does not answer.",
          "tandem status runs/NAME 127.0.0.1:9400");
  SetAction(*sub, chosen, [flags] { return Status(*flags); });
}

}  // namespace tandem::cli
