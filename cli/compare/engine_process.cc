#include "cli/compare/engine_process.h"

#include <poll.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/compare/engine_protocol.h"
#include "cli/io/child_process.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"

namespace tandem::cli {
namespace {

// A reply of 64 completions of 4096 tokens with three columns is 20 MB.
constexpr size_t kLongestReply = size_t{256} << 20;  // bytes

ChildSpec SpecOf(const EngineStart& start) {
  ChildSpec child = {.name = start.spec.text,
                     .argv = {start.python.interpreter, "-m",
                              "tandem_rl.engines." + start.spec.name, "--model", start.model},
                     .log_path = start.log_path,
                     .pipe_output = true,
                     .pipe_input = true,
                     .longest_line = kLongestReply};
  if (!start.spec.dtype.empty()) {
    child.argv.insert(child.argv.end(), {"--dtype", start.spec.dtype});
  }
  for (const std::string& option : start.spec.options) {
    child.argv.insert(child.argv.end(), {"--option", option});
  }
  if (!start.python.package_folder.empty()) {
    const char* const present = std::getenv("PYTHONPATH");
    child.environment.push_back(absl::StrCat("PYTHONPATH=", start.python.package_folder,
                                             present == nullptr ? "" : ":",
                                             present == nullptr ? "" : present));
  }
  return child;
}

class EngineProcess : public ComparedEngine {
 public:
  EngineProcess(std::unique_ptr<ChildProcess> child, WhileWaiting waiting)
      : child_(std::move(child)), waiting_(std::move(waiting)) {}

  absl::Status AskForInfo() {
    TANDEM_ASSIGN_OR_RETURN(const std::string line, Ask(InfoRequest(++last_id_)));
    TANDEM_ASSIGN_OR_RETURN(info_, Named(ReadInfo(line, last_id_)));
    return absl::OkStatus();
  }

  EngineInfo Info() const override { return info_; }

  absl::StatusOr<std::vector<DrawnCompletion>> Sample(
      const std::vector<std::vector<int32_t>>& prompts, const EngineSampling& sampling) override {
    TANDEM_ASSIGN_OR_RETURN(const std::string line,
                            Ask(SampleRequest(++last_id_, prompts, sampling)));
    return Named(ReadCompletions(line, last_id_, static_cast<int64_t>(prompts.size())));
  }

  absl::StatusOr<std::vector<RowScore>> Score(const std::vector<RowToScore>& rows,
                                              double temperature) override {
    TANDEM_ASSIGN_OR_RETURN(const std::string line,
                            Ask(ScoreRequest(++last_id_, rows, temperature)));
    return Named(ReadScores(line, last_id_, rows));
  }

  absl::Status LoadWeights(const std::string& directory) override {
    TANDEM_ASSIGN_OR_RETURN(const std::string line, Ask(LoadWeightsRequest(++last_id_, directory)));
    return Named(ReadLoaded(line, last_id_));
  }

 private:
  // An error with the engine's name before its message.
  absl::Status Named(const absl::Status& status) const {
    if (status.ok()) return status;
    return absl::Status(status.code(),
                        absl::StrCat("engine ", child_->name(), ": ", status.message()));
  }
  template <typename T>
  absl::StatusOr<T> Named(absl::StatusOr<T> reply) const {
    if (reply.ok()) return reply;
    return Named(reply.status());
  }

  absl::Status Ended(const std::string& how) const {
    const std::vector<std::string> log = LastLines(child_->log_path(), 12, child_->log_begin());
    return trainer::WithExitCode(
        Unavailable("engine ", child_->name(), " ", how, "; the end of ", child_->log_path(),
                    ":\n  ", absl::StrJoin(log, "\n  ")),
        ExitCode::kChildDied);
  }

  // Sends a request, and waits for the line of its reply.
  absl::StatusOr<std::string> Ask(const std::string& request) {
    const absl::Status sent = child_->Write(request);
    std::optional<ChildEnd> end;
    while (true) {
      std::vector<std::string> lines = child_->output().Lines();
      if (!lines.empty()) return std::move(lines.front());
      if (end.has_value()) return Ended("ended with " + end->ToString());
      // The output is read once more after the end has been seen.
      end = child_->Poll();
      if (end.has_value()) continue;
      if (!sent.ok()) return Ended("does not take requests");
      TANDEM_RETURN_IF_ERROR(waiting_());
      pollfd output = {.fd = child_->output().fd(), .events = POLLIN, .revents = 0};
      constexpr int kWaitMs = 200;
      poll(&output, 1, kWaitMs);
    }
  }

  const std::unique_ptr<ChildProcess> child_;
  const WhileWaiting waiting_;
  EngineInfo info_;
  int64_t last_id_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ComparedEngine>> StartEngineProcess(const EngineStart& start,
                                                                   WhileWaiting waiting) {
  TANDEM_ASSIGN_OR_RETURN(auto child, ChildProcess::Start(SpecOf(start)));
  auto engine = std::make_unique<EngineProcess>(std::move(child), std::move(waiting));
  TANDEM_RETURN_IF_ERROR(engine->AskForInfo());
  return engine;
}

}  // namespace tandem::cli
