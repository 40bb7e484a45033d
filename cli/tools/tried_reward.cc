#include "cli/tools/tried_reward.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/statistics/sample_statistics.h"

namespace tandem::cli {
namespace {

constexpr size_t kPromptWidth = 30, kCompletionWidth = 36, kAnswerWidth = 12;  // characters

bool IsNone(const trainer::Reward& reward) {
  return reward.mask_reason == trainer::kNoRewardApplies;
}

// At most `width` characters of one line, padded to `width`.
std::string Cell(std::string_view text, size_t width) {
  std::string line;
  size_t shown = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool starts_character = (byte & 0xc0) != 0x80;
    if (starts_character && shown == width - 1 && i + 1 < text.size()) {
      line += "…";
      ++shown;
      break;
    }
    shown += starts_character;
    line += byte < ' ' || byte == 0x7f ? ' ' : text[i];
  }
  return line.append(width - std::min(width, shown), ' ');
}

std::string RewardCell(const trainer::Reward& reward) {
  if (IsNone(reward)) return "none";
  if (!reward.mask_reason.empty()) return "failed";
  return absl::StrFormat("%.4g", TotalOf(reward));
}

// What the function said beside the reward: parts, steps, or why there is none.
std::string Remarks(const trainer::Reward& reward) {
  if (!reward.mask_reason.empty()) return IsNone(reward) ? "" : reward.mask_reason;
  std::string remarks;
  for (const auto& [name, value] : reward.parts) {
    const size_t slash = name.find('/');
    if (slash == std::string::npos) continue;
    absl::StrAppend(&remarks, remarks.empty() ? "" : "  ", name.substr(slash + 1), " ",
                    absl::StrFormat("%.4g", value));
  }
  if (!reward.steps.empty()) {
    absl::StrAppend(&remarks, remarks.empty() ? "" : "  ", reward.steps.size(), " steps");
  }
  return remarks;
}

std::string PartOfAll(int64_t part, int64_t whole) {
  if (whole == 0) return "none";
  return absl::StrFormat("%d of %d", part, whole);
}

}  // namespace

double TotalOf(const trainer::Reward& reward) {
  double total = reward.value;
  for (const trainer::StepReward& step : reward.steps) total += step.value;
  for (const double of_token : reward.token_rewards) total += of_token;
  return total;
}

RewardStatistics StatisticsOf(const TriedReward& tried) {
  RewardStatistics statistics;
  std::vector<double> all;
  for (const TriedRow& row : tried.rows) {
    std::vector<double> of_row;
    for (const TriedCompletion& completion : row.completions) {
      const bool is_none = IsNone(completion.reward);
      statistics.num_none += is_none;
      statistics.num_failed += !is_none && !completion.reward.mask_reason.empty();
      if (completion.reward.mask_reason.empty()) of_row.push_back(TotalOf(completion.reward));
    }
    statistics.num_completions += std::ssize(row.completions);
    statistics.seconds_per_call += row.seconds / static_cast<double>(tried.rows.size());
    all.insert(all.end(), of_row.begin(), of_row.end());
    if (of_row.size() < 2) continue;
    ++statistics.num_groups;
    statistics.num_zero_variance += std::ranges::count(of_row, of_row[0]) == std::ssize(of_row);
  }
  statistics.num_rewarded = std::ssize(all);
  if (all.empty()) return statistics;
  statistics.mean = offpolicy::Mean(all);
  if (all.size() > 1) {
    statistics.deviation =
        std::sqrt(offpolicy::SquaredDeviations(all) / static_cast<double>(all.size() - 1));
  }
  return statistics;
}

std::string RewardTable(const TriedReward& tried) {
  std::string text = absl::StrCat(tried.function, " on ", tried.data, ": ", tried.rows.size(),
                                  " rows; completions are ", tried.completions_are, "\n\n");
  absl::StrAppend(
      &text, absl::StrFormat("%5s  %s  %s  %s  %8s  %8s  %s\n", "line",
                             Cell("prompt", kPromptWidth), Cell("completion", kCompletionWidth),
                             Cell("answer", kAnswerWidth), "reward", "seconds", "parts"));
  for (const TriedRow& row : tried.rows) {
    bool is_first = true;
    for (const TriedCompletion& completion : row.completions) {
      const std::string shown = completion.text.empty() ? "(empty)" : completion.text;
      std::string line = absl::StrFormat(
          "%5s  %s  %s  %s  %8s  %8s  %s", is_first ? absl::StrCat(row.line) : "",
          Cell(is_first ? row.prompt : "", kPromptWidth), Cell(shown, kCompletionWidth),
          Cell(is_first ? row.answer : "", kAnswerWidth), RewardCell(completion.reward),
          is_first ? absl::StrFormat("%.4f", row.seconds) : "", Remarks(completion.reward));
      line.erase(line.find_last_not_of(' ') + 1);
      absl::StrAppend(&text, line, "\n");
      is_first = false;
    }
  }
  const RewardStatistics of = StatisticsOf(tried);
  absl::StrAppend(
      &text, "\n",
      absl::StrFormat("mean %.4g, standard deviation %.4g of %d completions with a reward\n",
                      of.mean, of.deviation, of.num_rewarded),
      "None (does not apply): ", PartOfAll(of.num_none, of.num_completions),
      "; failed: ", PartOfAll(of.num_failed, of.num_completions),
      "; rows whose rewards are all equal, from which nothing is learned: ",
      PartOfAll(of.num_zero_variance, of.num_groups), "\n",
      absl::StrFormat("%.4f s for a call, which is about the completions of one row\n",
                      of.seconds_per_call));
  for (const std::string& traceback : tried.tracebacks)
    absl::StrAppend(&text, "\n", traceback, "\n");
  return text;
}

nlohmann::ordered_json RewardJson(const TriedReward& tried) {
  using nlohmann::ordered_json;
  ordered_json rows = ordered_json::array();
  for (const TriedRow& row : tried.rows) {
    ordered_json completions = ordered_json::array();
    for (const auto& [text, reward] : row.completions) {
      ordered_json parts = ordered_json::object();
      for (const auto& [name, value] : reward.parts) parts[name] = value;
      ordered_json one = {{"completion", text}, {"reward", nullptr}, {"parts", std::move(parts)}};
      for (const auto& [column, note] : reward.notes) one["extra"][column] = note;
      if (reward.mask_reason.empty()) one["reward"] = TotalOf(reward);
      if (!reward.mask_reason.empty() && !IsNone(reward)) one["failed"] = reward.mask_reason;
      completions.push_back(std::move(one));
    }
    rows.push_back({{"line", row.line},
                    {"prompt", row.prompt},
                    {"answer", row.answer},
                    {"seconds", row.seconds},
                    {"completions", std::move(completions)}});
  }
  const RewardStatistics of = StatisticsOf(tried);
  return {{"function", tried.function},
          {"data", tried.data},
          {"completions_are", tried.completions_are},
          {"num_completions", of.num_completions},
          {"num_rewarded", of.num_rewarded},
          {"num_none", of.num_none},
          {"num_failed", of.num_failed},
          {"mean", of.mean},
          {"std", of.deviation},
          {"num_groups", of.num_groups},
          {"num_zero_variance", of.num_zero_variance},
          {"seconds_per_call", of.seconds_per_call},
          {"rows", std::move(rows)},
          {"tracebacks", tried.tracebacks}};
}

}  // namespace tandem::cli
