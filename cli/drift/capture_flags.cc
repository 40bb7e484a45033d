#include "cli/drift/capture_flags.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cli/io/subcommand.h"
#include "cli/model/model_input.h"
#include "common/base/status_macros.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

// (step, path) of every RUN/captures/step_N, sorted by step.
std::vector<std::pair<int64_t, std::string>> CapturesOf(const fs::path& run) {
  std::vector<std::pair<int64_t, std::string>> captures;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(run / "captures", ignored)) {
    const std::string name = entry.path().filename().string();
    int64_t step = 0;
    if (name.starts_with("step_") && absl::SimpleAtoi(name.substr(5), &step)) {
      captures.emplace_back(step, entry.path().string());
    }
  }
  std::ranges::sort(captures);
  return captures;
}

}  // namespace

void AddCaptureArgument(CLI::App* sub, std::string* capture) {
  sub->add_option(
         "capture", *capture,
         "directory of a capture (runs/NAME/captures/step_N); for a run, its captures are listed")
      ->required();
}

void AddModelFlags(CLI::App* sub, std::string* model, std::string* weights) {
  sub->add_option(
      "--model", *model,
      "directory with config.json and tokenizer, or a name on the Hub; default: the one that the\n"
      "capture names");
  sub->add_option("--weights", *weights,
                  "model directory, name on the Hub or safetensors file, for weights the capture "
                  "does not carry");
}

absl::Status FindModelFlags(std::string* model, std::string* weights) {
  for (std::string* const named : {model, weights}) {
    if (!named->empty()) TANDEM_RETURN_IF_ERROR(FindTokenizer(named));
  }
  return absl::OkStatus();
}

absl::Status CheckIsOneCapture(const std::string& path) {
  std::error_code ignored;
  const fs::path run(path);
  if (!fs::exists(run / "run.json", ignored) && !fs::is_directory(run / "captures", ignored)) {
    return absl::OkStatus();
  }
  const auto captures = CapturesOf(run);
  if (captures.empty()) {
    return AsUsageError(
        InvalidArgument(path,
                        " is a run without captures: a run with trainer.capture.every=N keeps one "
                        "every N train steps"));
  }
  std::string list;
  for (const auto& [step, capture] : captures) absl::StrAppend(&list, "\n  ", capture);
  return AsUsageError(InvalidArgument(path, " is a run; name one of its captures:", list));
}

int ExitAfterCapture(const absl::StatusOr<int>& code) {
  if (code.ok()) return *code;
  return Fail(absl::IsDataLoss(code.status()) ? absl::InvalidArgumentError(code.status().message())
                                              : code.status());
}

}  // namespace tandem::cli
