#include "trainer/environments/environment_check.h"

#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/process/python_package.h"
#include "nlohmann/json.hpp"
#include "trainer/environments/environment_messages.h"

namespace tandem::trainer {
namespace {

// Whole packages are imported before the first episode, maybe from a cold disk.
constexpr double kLoadSeconds = 300;

// Does `work` with a process that has loaded the environment, on a thread of its own.
absl::Status WithProcess(const EnvironmentOptions& options, const std::string& hello,
                         const std::function<absl::Status(LineProcess&, std::string tools)>& work) {
  absl::Status status;
  std::thread([&] {
    BlockSigpipe();
    EndSign never;
    LineProcess process(EnvironmentProgram(options), &never);
    std::string traceback;
    auto tools = LoadEnvironment(process, hello, &traceback);
    status = tools.ok() ? work(process, *std::move(tools)) : tools.status();
    if (!traceback.empty()) {
      status = absl::Status(status.code(), absl::StrCat(status.message(), "\n", traceback));
    }
  }).join();
  return status;
}

}  // namespace

LineProgram EnvironmentProgram(const EnvironmentOptions& options) {
  return PythonWorkerProgram("environment worker", "tandem_rl.environments.worker",
                             options.interpreter, options.memory_limit_mib);
}

absl::StatusOr<std::string> LoadEnvironment(LineProcess& process, std::string hello,
                                            std::string* traceback) {
  if (absl::Status started = process.Start(); !started.ok()) {
    return Unavailable(started.message(),
                       "; environments need Python 3.10 or newer: install it, or name it in "
                       "trainer.environment.interpreter");
  }
  const double deadline = MonotonicSeconds() + kLoadSeconds;
  absl::StatusOr<std::string> line = process.NextLine(&hello, deadline);
  while (absl::IsAborted(line.status())) line = process.NextLine(&hello, deadline);  // woken
  if (line.ok()) return ReadEnvironmentReady(*line, traceback);
  if (absl::IsCancelled(line.status())) return line.status();
  return absl::Status(line.status().code(),
                      absl::StrCat(line.status().message(), " before it had loaded the environment",
                                   PythonWorkerAdvice(process)));
}

absl::StatusOr<std::string> CheckEnvironment(const EnvironmentOptions& options,
                                             const std::string& chat_template,
                                             const std::string& row_json) {
  std::string tools;
  TANDEM_RETURN_IF_ERROR(WithProcess(options, EnvironmentHello(options, chat_template, row_json),
                                     [&](LineProcess&, std::string have) {
                                       tools = std::move(have);
                                       return absl::OkStatus();
                                     }));
  return tools;
}

absl::StatusOr<std::vector<std::string>> EnvironmentRows(const EnvironmentOptions& options,
                                                         int64_t count, int64_t first_seed) {
  std::vector<std::string> rows;
  TANDEM_RETURN_IF_ERROR(WithProcess(
      options, EnvironmentHello(options, ""), [&](LineProcess& process, const std::string&) {
        std::string unsent = RowsLine(count, first_seed);
        for (;;) {
          TANDEM_ASSIGN_OR_RETURN(
              const std::string line,
              process.NextLine(&unsent, MonotonicSeconds() + options.step_timeout_seconds));
          TANDEM_ASSIGN_OR_RETURN(std::optional<std::string> row, ReadRow(line));
          if (!row.has_value()) return absl::OkStatus();
          rows.push_back(*std::move(row));
        }
      }));
  return rows;
}

absl::StatusOr<DataOptions> WithTools(DataOptions data, const EnvironmentOptions& environment,
                                      const std::string& model_directory) {
  if (!HasEnvironment(environment)) return data;
  TANDEM_ASSIGN_OR_RETURN(data.tools_json,
                          CheckEnvironment(environment, ReadChatTemplate(model_directory)));
  if (data.tools_json.empty() || data.tools_file.empty()) return data;
  return InvalidArgument("trainer.data.tools_file is ", data.tools_file,
                         ", and the environment brings its tools: leave one of both out");
}

std::string ReadChatTemplate(const std::string& model_directory) {
  const auto file = ReadFile(absl::StrCat(model_directory, "/chat_template.jinja"));
  if (file.ok()) return *file;
  const auto config = ReadFile(absl::StrCat(model_directory, "/tokenizer_config.json"));
  if (!config.ok()) return "";
  const ordered_json parsed = ordered_json::parse(*config, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return "";
  const auto found = parsed.find("chat_template");
  return found != parsed.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace tandem::trainer
