#include "cli/run/progress_view.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/io/live_line.h"
#include "common/base/printable.h"
#include "common/statistics/sample_statistics.h"

namespace tandem::cli {
namespace {

double NumberOf(const nlohmann::json& line, const char* key, double if_absent) {
  const auto it = line.find(key);
  return it != line.end() && it->is_number() ? it->get<double>() : if_absent;
}

// Messages may quote servers and reward programs, so control characters are escaped.
std::string TextOf(const nlohmann::json& line, const char* key) {
  const auto it = line.find(key);
  return it != line.end() && it->is_string() ? Printable(it->get<std::string>()) : "";
}

std::string Counted(const std::map<std::string, int64_t>& counts) {
  std::string names;
  for (const auto& [name, count] : counts) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", name, " ", count, "x");
  }
  return names;
}

}  // namespace

double RunSummary::FirstRewards() const {
  return offpolicy::Mean(std::span(rewards).first(std::min<size_t>(3, rewards.size())), 0);
}

double RunSummary::LastRewards() const {
  const size_t count = std::min<size_t>(3, rewards.size());
  return offpolicy::Mean(std::span(rewards).last(count), 0);
}

std::string RunSummary::AlertsLine() const {
  const std::string names = Counted(alerts);
  return names.empty() ? "" : absl::StrCat("alerts: ", names, " (see docs/observability.md)\n");
}

std::string RunSummary::MaskedLine() const {
  const std::string reasons = Counted(masked);
  return reasons.empty() ? ""
                         : absl::StrCat("masked: ", reasons,
                                        " (completions without a reward; drop_reason in rollouts/ "
                                        "of the run says why)\n");
}

std::string RunSummary::RestartsLine() const {
  const std::string names = Counted(restarts);
  return names.empty() ? "" : absl::StrCat("restarts: ", names, " (launch.max_restarts)\n");
}

bool ProgressView::Take(std::string_view text) {
  const nlohmann::json line = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!line.is_object()) return false;
  if (line.contains("kind")) return TakeEvent(line);
  if (line.contains("reward/mean") || line.contains("eval/greedy_share_correct")) {
    return TakeStep(line);
  }
  const std::string phase = TextOf(line, "phase");
  if (!phase.empty()) {
    const int64_t step = static_cast<int64_t>(NumberOf(line, "step", 0));
    text_ = ProgressBar(std::max<int64_t>(0, step - 1), num_steps_, 20) + "  " + phase + numbers_;
  }
  return false;
}

bool ProgressView::TakeStep(const nlohmann::json& line) {
  const int64_t step = static_cast<int64_t>(NumberOf(line, "step", 0));
  std::string out;
  if (line.contains("reward/mean")) {
    last_step_ = step;
    const double reward = NumberOf(line, "reward/mean", 0);
    summary_.rewards.push_back(reward);
    const double seconds = NumberOf(line, "time/step", 0);
    seconds_per_step_ = seconds_per_step_ > 0 ? 0.7 * seconds_per_step_ + 0.3 * seconds : seconds;
    const double left =
        seconds_per_step_ * static_cast<double>(std::max<int64_t>(0, num_steps_ - step));
    CountMasked(line);
    numbers_ = absl::StrFormat("  reward %.3f  %5.0f tok/s  drift %.1e  ETA %s", reward,
                               NumberOf(line, "throughput/sampled_tokens_per_s", 0),
                               NumberOf(line, "drift/mean_abs_delta", 0), ShortDuration(left));
    out = absl::StrFormat("step %3d/%d%s", step, num_steps_, numbers_);
  }
  const double greedy = NumberOf(line, "eval/greedy_share_correct", -1);
  if (greedy >= 0) {
    if (summary_.first_greedy < 0) summary_.first_greedy = greedy;
    summary_.last_greedy = greedy;
    absl::StrAppendFormat(&out, "%sheld out, greedy: %.2f correct", out.empty() ? "" : "  ",
                          greedy);
  }
  text_ = out;
  return true;
}

void ProgressView::CountMasked(const nlohmann::json& line) {
  static constexpr std::pair<const char*, const char*> kReasons[] = {
      {"turns/failed", "environment_failed"}, {"drops/completion_reward_failed", "reward_failed"}};
  for (const auto& [metric, reason] : kReasons) {
    const double count = NumberOf(line, metric, 0);
    if (count > 0) summary_.masked[reason] += static_cast<int64_t>(count);
  }
}

bool ProgressView::TakeEvent(const nlohmann::json& line) {
  const std::string kind = TextOf(line, "kind");
  if (kind == "alert") {
    if (++summary_.alerts[TextOf(line, "name")] > 1) return false;
    text_ = "alert: " + TextOf(line, "message");
    const std::string diagnosis = TextOf(line, "diagnosis");
    if (!diagnosis.empty()) text_ += " (" + diagnosis + ")";
    return true;
  }
  // A traceback may follow the first line of the message.
  if (kind == "environment_failed" || kind == "reward_raised") {
    if (!failures_.insert(kind).second) return false;
    const auto message = line.find("message");
    const std::string whole = message != line.end() && message->is_string() ? *message : "";
    text_ = absl::StrCat(kind, ": ", Printable(whole.substr(0, whole.find('\n'))));
    return true;
  }
  if (kind == "server_lost" || kind == "server_hung" || kind == "server_back" ||
      kind == "push_failed" || kind == "eval_failed" || kind == "resumed" ||
      kind == "started_over" || kind == "run_stopped") {
    text_ = kind + ": " + TextOf(line, "message");
    return true;
  }
  return false;
}

}  // namespace tandem::cli
