#include "trainer/checkpoints/best_checkpoint.h"

#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"

namespace tandem::trainer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string BestPath(const std::string& directory, int64_t step) {
  return absl::StrCat(directory, "/step_", step);
}

absl::Status Failed(const std::string& path, const std::error_code& error) {
  if (error == std::errc::no_space_on_device) return ResourceExhausted(path, ": no space left");
  return Unavailable(path, ": ", error.message());
}

// Every file of `from` under the same name in `to`, as a link or else as a copy.
absl::Status LinkFiles(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::remove_all(to, error);
  fs::create_directories(to, error);
  if (error) return Failed(to, error);
  for (const auto& entry : fs::directory_iterator(from, error)) {
    const fs::path target = fs::path(to) / entry.path().filename();
    std::error_code linked;
    fs::create_hard_link(entry.path(), target, linked);
    if (linked) fs::copy_file(entry.path(), target, error);
    if (error) return Failed(target.string(), error);
  }
  return error ? Failed(from, error) : absl::OkStatus();
}

}  // namespace

bool Replaces(const BestChoice& best, const BestChoice& next) {
  if (best.metric.empty() || next.metric.empty())
    return !next.metric.empty() || best.metric.empty();
  return next.value >= best.value;
}

BestChoice ChoiceOf(int64_t step, const std::string& metric, const MetricsLine& line) {
  const double value = line.Get(metric, std::numeric_limits<double>::quiet_NaN());
  if (metric.empty() || !std::isfinite(value)) return {.step = step};
  return {step, metric, value};
}

BestCheckpoint::BestCheckpoint(std::string checkpoints, std::string metric)
    : checkpoints_(std::move(checkpoints)),
      directory_(checkpoints_ + "/best"),
      metric_(std::move(metric)) {}

absl::Status BestCheckpoint::Open(int64_t step) {
  const auto text = ReadFile(directory_ + "/best.json");
  if (!text.ok()) return absl::OkStatus();  // none yet
  const json parsed = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object() || !parsed.contains("step") || !parsed["step"].is_number_integer()) {
    return DataLoss(directory_, "/best.json has no \"step\": remove it to go on without a best ",
                    "checkpoint");
  }
  const BestChoice was = {parsed["step"].get<int64_t>(), parsed.value("metric", ""),
                          parsed.value("value", 0.0)};
  // Values of another metric are not compared: the next checkpoint is the best then.
  if (was.step <= step && (was.metric.empty() || was.metric == metric_)) best_ = was;
  return absl::OkStatus();
}

absl::Status BestCheckpoint::Note(int64_t step, const MetricsLine& line) {
  const BestChoice next = ChoiceOf(step, metric_, line);
  if (best_.has_value() && !Replaces(*best_, next)) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(LinkFiles(BestPath(checkpoints_, step), BestPath(directory_, step)));
  const json choice = {{"step", step}, {"metric", next.metric}, {"value", next.value}};
  TANDEM_RETURN_IF_ERROR(WriteFileAtomically(directory_ + "/best.json", choice.dump() + "\n"));
  const std::optional<BestChoice> before = std::exchange(best_, next);
  std::error_code ignored;
  if (before.has_value() && before->step != step) {
    fs::remove_all(BestPath(directory_, before->step), ignored);
  }
  return absl::OkStatus();
}

absl::StatusOr<Checkpoint> BestCheckpoint::Load(const CheckpointIdentity& identity) const {
  if (!best_.has_value()) return NotFound("no checkpoint within the KL budget was saved");
  return LoadCheckpoint(BestPath(directory_, best_->step), identity);
}

std::string Describe(const BestChoice& best) {
  if (best.metric.empty())
    return absl::StrCat("step ", best.step, " (the newest within the budget)");
  return absl::StrCat("step ", best.step, " (", best.metric, " ", best.value,
                      ", the best of the run)");
}

}  // namespace tandem::trainer
