#include "drift_lab/why/run_ratios.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"

namespace tandem::drift {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

double NumberAt(const json& line, const char* name, double otherwise) {
  const auto found = line.find(name);
  return found != line.end() && found->is_number() ? found->get<double>() : otherwise;
}

StepRatio RatioOf(const json& line) {
  const double unknown = std::numeric_limits<double>::quiet_NaN();
  return {.step = static_cast<int64_t>(NumberAt(line, "step", 0)),
          .num_updates = static_cast<int64_t>(NumberAt(line, "loss/num_updates", 0)),
          .skipped_updates = static_cast<int64_t>(NumberAt(line, "optimizer/skipped_updates", 0)),
          .mean = NumberAt(line, "loss/ratio_mean", unknown),
          .max = NumberAt(line, "loss/ratio_max", unknown),
          .clipped_share =
              NumberAt(line, "loss/clip_low_share", 0) + NumberAt(line, "loss/clip_high_share", 0),
          .grad_norm = NumberAt(line, "optimizer/grad_norm", 0)};
}

// Reads correction.mode of the resolved configuration. `tandem run` writes it in a section
// `trainer`, the trainer alone at the top.
absl::StatusOr<bool> IsBypass(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  try {
    const YAML::Node root = YAML::Load(text);
    const YAML::Node trainer = root["trainer"] ? root["trainer"] : root;
    const YAML::Node mode = trainer["correction"] ? trainer["correction"]["mode"] : YAML::Node();
    return mode && mode.IsScalar() && mode.Scalar() == "bypass";
  } catch (const YAML::Exception& error) {
    return InvalidArgument(path, ": ", error.what(),
                           "; it is the run's resolved configuration: "
                           "put it back, or name the capture alone");
  }
}

bool HasFile(const fs::path& directory, const char* name) {
  std::error_code error;
  return fs::exists(directory / name, error);
}

bool IsRun(const fs::path& directory) {
  return HasFile(directory, "metrics.jsonl") || HasFile(directory, "run.json");
}

// The N of the newest complete captures/step_N; -1: none.
int64_t NewestCapture(const fs::path& run) {
  int64_t newest = -1;
  std::error_code error;
  for (fs::directory_iterator it(run / "captures", error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    absl::string_view digits = name;
    int64_t step = 0;
    if (absl::ConsumePrefix(&digits, "step_") && absl::SimpleAtoi(digits, &step) &&
        HasFile(it->path(), "manifest.json")) {
      newest = std::max(newest, step);
    }
  }
  return newest;
}

}  // namespace

const StepRatio* RunRatios::Find(int64_t step) const {
  const auto found = std::ranges::find(steps, step, &StepRatio::step);
  return found == steps.end() ? nullptr : &*found;
}

absl::StatusOr<RunRatios> ReadRunRatios(const std::string& run) {
  RunRatios ratios{.run = run};
  if (run.empty()) return ratios;
  if (HasFile(run, "config.yaml")) {
    TANDEM_ASSIGN_OR_RETURN(ratios.bypass, IsBypass(run + "/config.yaml"));
  }
  if (!HasFile(run, "metrics.jsonl")) return ratios;
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadFile(run + "/metrics.jsonl"));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const json value = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!value.is_object() || !value.contains("loss/num_updates")) continue;
    ratios.steps.push_back(RatioOf(value));
  }
  std::ranges::stable_sort(ratios.steps, {}, &StepRatio::step);
  return ratios;
}

absl::StatusOr<WhyTarget> FindCapture(const std::string& path) {
  const fs::path directory = fs::path(path + "/").lexically_normal().parent_path();
  if (HasFile(directory, "manifest.json")) {
    const fs::path run = fs::absolute(directory).lexically_normal().parent_path().parent_path();
    return WhyTarget{directory.string(), IsRun(run) ? run.string() : ""};
  }
  if (!IsRun(directory)) {
    return NotFound(path,
                    ": neither a run directory (metrics.jsonl, run.json) "
                    "nor a capture (manifest.json) nor a records file (docs/records.md); name "
                    "runs/NAME, runs/NAME/captures/step_N or FILE.jsonl");
  }
  const int64_t newest = NewestCapture(directory);
  if (newest < 0) {
    return NotFound(path,
                    ": the run has no captures, and without tokens there "
                    "is nothing to score again. Run or resume it with "
                    "--set trainer.capture.every=1, or take one from a "
                    "server that is up: tandem drift capture");
  }
  return WhyTarget{(directory / "captures" / absl::StrCat("step_", newest)).string(),
                   directory.string()};
}

}  // namespace tandem::drift
