#include "cli/report/run_data.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/report/overoptimisation_data.h"
#include "common/statistics/sample_statistics.h"

namespace tandem::report {
namespace {

constexpr char kSplitPrefix[] = "drift/by_";

bool IsInterval(const Json& value) { return value.is_array() && value.size() == 3; }

// The bucket objects of one split in a line, or null.
const Json* BucketsOf(const Json& row, const std::string& key) {
  const auto it = row.find(key);
  return it != row.end() && it->is_object() ? &*it : nullptr;
}

Json OverSteps(const std::vector<const Json*>& rows, const std::string& key,
               const std::string& measure) {
  std::set<std::string> labels;
  for (const Json* row : rows) {
    const Json* buckets = BucketsOf(*row, key);
    if (buckets == nullptr) continue;
    for (const auto& [label, bucket] : buckets->items()) labels.insert(label);
  }
  Json series = Json::object();
  for (const std::string& label : labels) {
    Json values = Json::array();
    for (const Json* row : rows) {
      const Json* buckets = BucketsOf(*row, key);
      const bool has = buckets != nullptr && buckets->contains(label) &&
                       (*buckets)[label].is_object() && (*buckets)[label].contains(measure) &&
                       IsInterval((*buckets)[label][measure]);
      values.push_back(has ? (*buckets)[label][measure] : Json(nullptr));
    }
    series[label] = std::move(values);
  }
  return series;
}

using Rows = std::map<int64_t, Json>;  // train step -> its line of metrics.jsonl

std::optional<double> Number(const Json& row, const std::string& key) {
  const auto it = row.find(key);
  if (it == row.end() || !it->is_number()) return std::nullopt;
  return it->get<double>();
}

std::string Text(const Json& row, const char* key) {
  const auto it = row.find(key);
  return it != row.end() && it->is_string() ? it->get<std::string>() : "";
}

std::vector<double> Column(const Rows& rows, const std::string& key) {
  std::vector<double> values;
  for (const auto& [step, row] : rows) {
    if (const std::optional<double> value = Number(row, key)) values.push_back(*value);
  }
  return values;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

Rows ReadMetrics(const RunFiles& files, Notices* notices) {
  constexpr char kName[] = "metrics.jsonl";
  Rows rows;
  std::set<int64_t> repeated;
  files.ForEachLine(kName, [&](const Json& row, int64_t line) {
    const auto step = row.find("step");
    if (step == row.end() || !step->is_number_integer()) {
      notices->Add(kName, absl::StrCat(At(kName, line), ": no integer \"step\"; line skipped"));
      return;
    }
    const int64_t number = step->get<int64_t>();
    if (!rows.insert_or_assign(number, row).second) repeated.insert(number);
  });
  if (!repeated.empty()) {
    notices->Add(
        kName, absl::StrCat(kName, ": ", repeated.size(), " steps from ", *repeated.begin(), " to ",
                            *repeated.rbegin(),
                            " occur more than once (a resume repeats steps); the last line "
                            "of each counts"));
  }
  return rows;
}

// The lines that are drawn as curves: all, or every n-th, the last and those with an evaluation.
std::vector<const Json*> ThinnedRows(const Rows& rows, int64_t max_steps, Notices* notices) {
  std::vector<const Json*> kept;
  const int64_t count = static_cast<int64_t>(rows.size());
  const int64_t stride = std::max<int64_t>(1, (count + max_steps - 1) / max_steps);
  int64_t i = 0;
  for (const auto& [step, row] : rows) {
    if (i % stride == 0 || i == count - 1 || row.contains("eval/greedy")) kept.push_back(&row);
    ++i;
  }
  if (stride > 1) {
    notices->Add("metrics.jsonl",
                 absl::StrCat("metrics.jsonl: ", count, " steps; curves show every ", stride,
                              ". one, totals count all"));
  }
  return kept;
}

Json Series(const std::vector<const Json*>& rows) {
  std::set<std::string> keys;
  for (const Json* row : rows) {
    for (const auto& [key, value] : row->items()) {
      if (key != "step" && value.is_number()) keys.insert(key);
    }
  }
  Json series = Json::object();
  for (const std::string& key : keys) {
    Json values = Json::array();
    for (const Json* row : rows) {
      const std::optional<double> value = Number(*row, key);
      values.push_back(value ? Json(*value) : Json(nullptr));
    }
    series[key] = std::move(values);
  }
  return series;
}

void PutRewards(const Rows& rows, Json* headline) {
  const std::vector<double> rewards = Column(rows, "reward/mean");
  if (!rewards.empty()) {
    const size_t count = std::min<size_t>(3, rewards.size());
    (*headline)["reward_first"] = offpolicy::Mean(std::span(rewards).first(count));
    (*headline)["reward_last"] = offpolicy::Mean(std::span(rewards).last(count));
    (*headline)["reward_steps"] = count;
  }
  const std::string key = Column(rows, "eval/greedy_share_correct").empty()
                              ? "eval/greedy"
                              : "eval/greedy_share_correct";
  for (const auto& [step, row] : rows) {
    const std::optional<double> value = Number(row, key);
    if (!value) continue;
    if (!headline->contains("greedy_before")) {
      (*headline)["greedy_before"] = *value;
      (*headline)["greedy_before_step"] = step;
    }
    (*headline)["greedy_after"] = *value;
    (*headline)["greedy_after_step"] = step;
  }
}

void PutDrift(const Rows& rows, Json* headline) {
  const std::vector<double> gaps = Column(rows, "drift/mean_abs_delta");
  if (!gaps.empty()) {
    (*headline)["mean_abs_delta"] = offpolicy::Mean(gaps);
    (*headline)["mean_abs_delta_last"] = gaps.back();
  }
  const std::vector<double> largest = Column(rows, "drift/max_abs_delta");
  if (!largest.empty()) {
    (*headline)["max_abs_delta"] = *std::max_element(largest.begin(), largest.end());
  }
  const std::vector<double> ess = Column(rows, "drift/ess_fraction");
  if (!ess.empty()) {
    (*headline)["ess_min"] = *std::min_element(ess.begin(), ess.end());
    (*headline)["ess_last"] = ess.back();
  }
  const std::vector<double> staleness = Column(rows, "staleness/max");
  if (!staleness.empty()) {
    (*headline)["staleness_max"] = *std::max_element(staleness.begin(), staleness.end());
  }
}

void PutSpeed(const Rows& rows, Json* headline) {
  for (const char* name : {"sampled_tokens_per_s", "trained_tokens_per_s"}) {
    const std::vector<double> speeds = Column(rows, absl::StrCat("throughput/", name));
    if (!speeds.empty()) (*headline)[name] = Median(speeds);
  }
  const std::vector<double> step_seconds = Column(rows, "time/step");
  if (!step_seconds.empty()) (*headline)["step_seconds"] = Median(step_seconds);
  double bytes = 0;
  double seconds = 0;
  for (const auto& [step, row] : rows) {
    // The size of the weights that arrived, whatever a delta push sent. Runs without deltas have
    // only push/bytes.
    std::optional<double> row_bytes = Number(row, "push/dense_bytes");
    if (!row_bytes) row_bytes = Number(row, "push/bytes");
    const std::optional<double> row_seconds = Number(row, "push/seconds");
    if (!row_bytes || !row_seconds) continue;
    bytes += *row_bytes;
    seconds += *row_seconds;
  }
  if (seconds > 0) (*headline)["push_mb_per_s"] = bytes / seconds / 1e6;
}

Json Headline(const Rows& rows) {
  Json headline = {{"num_steps", 0}};
  if (rows.empty()) return headline;
  headline["num_steps"] = rows.size() - rows.count(0);
  headline["last_step"] = rows.rbegin()->first;
  const std::vector<double> times = Column(rows, "time_s");
  if (!times.empty()) headline["seconds"] = times.back();
  PutRewards(rows, &headline);
  PutDrift(rows, &headline);
  PutSpeed(rows, &headline);
  return headline;
}

// Adds the counts of `from` to `sum`, which grows if necessary.
void AddCounts(const Json& from, Json* sum) {
  if (!from.is_array()) return;
  for (size_t i = 0; i < from.size(); ++i) {
    if (i >= sum->size()) sum->push_back(0.0);
    if (from[i].is_number()) (*sum)[i] = (*sum)[i].get<double>() + from[i].get<double>();
  }
}

Json WeightHistograms(const Rows& rows) {
  constexpr char kRaw[] = "correction/hist_raw";
  constexpr char kTruncated[] = "correction/hist_truncated";
  Json all = {{"raw", Json::array()}, {"truncated", Json::array()}};
  Json first;
  Json last;
  for (const auto& [step, row] : rows) {
    if (!row.contains(kRaw) || !row.contains(kTruncated)) continue;
    AddCounts(row[kRaw], &all["raw"]);
    AddCounts(row[kTruncated], &all["truncated"]);
    last = {{"step", step}, {"raw", row[kRaw]}, {"truncated", row[kTruncated]}};
    if (first.is_null()) first = last;
  }
  if (first.is_null()) return Json::object();
  return {{"all", all}, {"first", first}, {"last", last}};
}

Json StalenessTotals(const Rows& rows) {
  Json totals = Json::object();
  for (const auto& [step, row] : rows) {
    const auto histogram = row.find("staleness/histogram");
    if (histogram == row.end() || !histogram->is_object()) continue;
    for (const auto& [staleness, tokens] : histogram->items()) {
      if (tokens.is_number())
        totals[staleness] = totals.value(staleness, 0.0) + tokens.get<double>();
    }
  }
  return totals;
}

Json DropTotals(const Rows& rows) {
  constexpr char kPrefix[] = "drops/";
  Json totals = Json::object();
  for (const auto& [step, row] : rows) {
    for (const auto& [key, value] : row.items()) {
      if (!absl::StartsWith(key, kPrefix) || !value.is_number()) continue;
      const std::string reason = key.substr(sizeof(kPrefix) - 1);
      totals[reason] = totals.value(reason, 0.0) + value.get<double>();
    }
  }
  return totals;
}

void KeepNewest(int64_t limit, const std::string& what, std::vector<Json>* rows, Notices* notices) {
  const int64_t count = static_cast<int64_t>(rows->size());
  if (count <= limit) return;
  rows->erase(rows->begin(), rows->begin() + (count - limit));
  notices->Add("events.jsonl", absl::StrCat("events.jsonl: ", count, " ", what,
                                            "; the table shows the ", limit, " newest"));
}

// The event of a commit, completed with the numbers that only the step's line has (pause, norms).
Json CommitRow(const Json& event, const Rows& rows) {
  Json commit = event;
  const std::optional<double> version = Number(event, "version");
  if (!version) return commit;
  for (const auto& [step, row] : rows) {
    if (Number(row, "push/version") != version) continue;
    for (const char* key : {"bytes", "seconds", "pause_ms", "changed_share", "arrived_share"}) {
      const std::optional<double> value = Number(row, absl::StrCat("push/", key));
      if (value && !commit.contains(key)) commit[key] = *value;
    }
  }
  return commit;
}

void PutEvents(const RunFiles& files, const Rows& rows, const DataLimits& limits, Notices* notices,
               Json* data) {
  std::vector<Json> commits;
  std::vector<Json> alerts;
  std::vector<Json> others;
  std::string state = "in progress";
  Json dropped = Json::object();
  files.ForEachLine("events.jsonl", [&](const Json& event, int64_t) {
    const std::string kind = Text(event, "kind");
    if (kind == "push_committed") {
      commits.push_back(CommitRow(event, rows));
    } else if (kind == "alert") {
      alerts.push_back(event);
    } else {
      others.push_back(event);
    }
    if (kind == "group_dropped") {
      const std::string reason = Text(event, "reason");
      dropped[reason] = dropped.value(reason, 0) + 1;
    }
    if (kind == "run_started" || kind == "resumed") state = "in progress";
    if (kind == "run_finished") state = "finished";
    if (kind == "run_stopped") state = "stopped";
  });
  // The launcher has a record of its own, because the trainer, which writes events.jsonl, may have
  // died.
  files.ForEachLine("restarts.jsonl", [&](const Json& restart, int64_t) {
    Json event = restart;
    event["message"] = absl::StrCat(Text(restart, "process"), " ended with ",
                                    Text(restart, "reason"), " and was started again");
    others.push_back(std::move(event));
  });
  KeepNewest(limits.max_commits, "weight commits", &commits, notices);
  KeepNewest(limits.max_events, "events", &others, notices);
  KeepNewest(limits.max_events, "alerts", &alerts, notices);
  (*data)["commits"] = std::move(commits);
  (*data)["alerts"] = std::move(alerts);
  (*data)["events"] = std::move(others);
  (*data)["dropped_groups"] = std::move(dropped);
  (*data)["state"] = state;
}

Json Captures(const RunFiles& files) {
  Json captures = Json::array();
  for (const int64_t step : files.CaptureSteps()) {
    captures.push_back(
        {{"step", step},
         {"page", files.Exists(absl::StrCat("captures/step_", step, "/attribution.html"))}});
  }
  return captures;
}

}  // namespace

Json BuildRunData(const RunFiles& files, const DataLimits& limits, Notices* notices) {
  const Rows rows = ReadMetrics(files, notices);
  const std::vector<const Json*> drawn = ThinnedRows(rows, limits.max_steps, notices);
  Json steps = Json::array();
  for (const Json* row : drawn) steps.push_back((*row)["step"]);
  Json data = {{"run", files.ReadObject("run.json")}, {"config", files.ReadText("config.yaml")},
               {"steps", std::move(steps)},           {"series", Series(drawn)},
               {"headline", Headline(rows)},          {"weights", WeightHistograms(rows)},
               {"staleness", StalenessTotals(rows)},  {"drops", DropTotals(rows)}};
  PutEvents(files, rows, limits, notices, &data);
  data["drift"] = BuildDriftData(drawn);
  data["overoptimisation"] = BuildOveroptimisationData(rows);
  data["captures"] = Captures(files);
  data["samples"] = BuildSampleData(files, limits.samples, notices);
  data["notices"] = notices->Lines();
  return data;
}

Json BuildDriftData(const std::vector<const Json*>& rows) {
  Json by_lag = Json::object(), by_turn = Json::object();
  for (const char* measure : {"k3", "mean_abs_delta"}) {
    by_lag[measure] = OverSteps(rows, "drift/by_version_lag", measure);
    by_turn[measure] = OverSteps(rows, "drift/by_turn", measure);
  }
  Json last = Json::object();
  for (const Json* row : rows) {
    for (const auto& [key, buckets] : row->items()) {
      if (!absl::StartsWith(key, kSplitPrefix) || !buckets.is_object() || buckets.empty()) continue;
      last[key.substr(sizeof(kSplitPrefix) - 1)] = {{"step", (*row)["step"]}, {"buckets", buckets}};
    }
  }
  return {{"by_version_lag", std::move(by_lag)},
          {"by_turn", std::move(by_turn)},
          {"last", std::move(last)}};
}

}  // namespace tandem::report
