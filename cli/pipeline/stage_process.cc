#include "cli/pipeline/stage_process.h"

#include <poll.h>
#include <signal.h>

#include <cstdio>
#include <memory>
#include <optional>

#include "common/base/printable.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"

namespace tandem::cli {
namespace {

constexpr int kRelayTickMs = 100;

absl::Status Relay(LinePipe& pipe, std::FILE* file, AppendFile& log, bool last) {
  std::vector<std::string> lines = pipe.Lines();
  if (std::string rest = last ? pipe.Rest() : ""; !rest.empty()) lines.push_back(std::move(rest));
  for (const std::string& line : lines) {
    std::fprintf(file, "%s\n", Printable(line).c_str());
    TANDEM_RETURN_IF_ERROR(log.Append(line + "\n"));
  }
  if (!lines.empty()) std::fflush(file);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ChildEnd> RunStageProcess(const std::string& name,
                                         const std::vector<std::string>& argv,
                                         const std::string& log, const StopSignal& stop) {
  TANDEM_ASSIGN_OR_RETURN(const auto file, AppendFile::Open(log));
  TANDEM_ASSIGN_OR_RETURN(
      const auto child,
      ChildProcess::Start({.name = name, .argv = argv, .pipe_output = true, .pipe_errors = true}));
  pollfd pipes[] = {{.fd = child->output().fd(), .events = POLLIN, .revents = 0},
                    {.fd = child->errors().fd(), .events = POLLIN, .revents = 0}};
  bool passed_on = false;
  std::optional<ChildEnd> end;
  do {
    poll(pipes, 2, kRelayTickMs);
    for (pollfd& pipe : pipes) {  // a closed pipe would make poll return at once
      if ((pipe.revents & (POLLIN | POLLHUP)) == POLLHUP) pipe.fd = -1;
    }
    if (!passed_on && stop.Requested()) {
      passed_on = true;
      child->Signal(stop.signal() == SIGINT ? SIGINT : SIGTERM);
    }
    end = child->Poll();
    TANDEM_RETURN_IF_ERROR(Relay(child->output(), stdout, *file, end.has_value()));
    TANDEM_RETURN_IF_ERROR(Relay(child->errors(), stderr, *file, end.has_value()));
  } while (!end.has_value());
  return *end;
}

}  // namespace tandem::cli
