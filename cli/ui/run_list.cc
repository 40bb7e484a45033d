#include "cli/ui/run_list.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string_view>
#include <system_error>

#include "cli/report/run_files.h"

namespace tandem::ui {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int kMostLevels = 2;
constexpr size_t kMostRuns = 2000;
constexpr std::streamoff kTailBytes = 256 << 10;  // more than a line of metrics.jsonl
constexpr double kSilentSeconds = 600;
constexpr std::string_view kListed[] = {
    "reward/mean",        "eval/greedy",   "drift/mean_abs_delta",
    "drift/ess_fraction", "staleness/max", "throughput/sampled_tokens_per_s",
    "time/step"};

// The whole lines at the end of a file, the last one first.
std::vector<std::string> LastLines(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return {};
  const std::streamoff size = file.tellg(), from = std::max<std::streamoff>(0, size - kTailBytes);
  std::string text(static_cast<size_t>(size - from), '\0');
  file.seekg(from);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (from > 0) text.erase(0, std::min(text.size(), text.find('\n') + 1));
  std::vector<std::string> lines;
  for (size_t end = text.rfind('\n'); end != std::string::npos && end > 0;) {
    const size_t before = text.rfind('\n', end - 1);
    const size_t begin = before == std::string::npos ? 0 : before + 1;
    lines.push_back(text.substr(begin, end - begin));
    end = before;
  }
  return lines;
}

Json ParseLine(const std::string& line) {
  Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : Json::object();
}

double SecondsSinceWritten(const std::string& path) {
  std::error_code error;
  const auto written = fs::last_write_time(path, error);
  if (error) return -1;
  return std::chrono::duration<double>(fs::file_time_type::clock::now() - written).count();
}

std::string StateOf(const Run& run, double seconds_ago) {
  for (const std::string& line : LastLines(run.path + "/events.jsonl")) {
    const Json event = ParseLine(line);
    const std::string kind = event.value("kind", "");
    if (kind == "run_finished") return "finished";
    if (kind == "run_stopped") return "stopped";
    if (kind == "run_started" || kind == "resumed") break;
  }
  return seconds_ago > kSilentSeconds ? "silent" : "in progress";
}

void Search(const fs::path& folder, const std::string& name, int levels, std::vector<Run>* runs) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (runs->size() >= kMostRuns) return;
    std::error_code ignored;
    if (!it->is_directory(ignored)) continue;
    const std::string own = it->path().filename().string();
    if (own.starts_with('.')) continue;
    const std::string below = name.empty() ? own : name + "/" + own;
    if (IsRun(it->path().string())) {
      runs->push_back({below, it->path().string()});
    } else if (levels > 1) {
      Search(it->path(), below, levels - 1, runs);
    }
  }
}

// A run that is reached from two roots is listed once.
void DropRepeats(std::vector<Run>* runs) {
  std::set<fs::path> paths;
  std::erase_if(*runs, [&](const Run& run) {
    std::error_code ignored;
    return !paths.insert(fs::weakly_canonical(run.path, ignored)).second;
  });
}

// Runs of one name below several roots: NAME, "NAME (2)" and so on, in the order of the roots.
void NumberNamesakes(std::vector<Run>* runs) {
  std::map<std::string, int> seen;
  for (Run& run : *runs) {
    const int number = ++seen[run.name];
    if (number > 1) run.name += " (" + std::to_string(number) + ")";
  }
}

}  // namespace

bool IsRun(const std::string& directory) {
  std::error_code error;
  return std::ranges::any_of(
      std::initializer_list<const char*>{"/run.json", "/metrics.jsonl", "/events.jsonl"},
      [&](const char* file) { return fs::is_regular_file(directory + file, error); });
}

std::vector<Run> FindRuns(const std::vector<std::string>& roots) {
  std::vector<Run> runs;
  for (const std::string& root : roots) {
    if (IsRun(root)) {
      runs.push_back({fs::path(root + "/").lexically_normal().parent_path().filename(), root});
    } else {
      Search(root, "", kMostLevels, &runs);
    }
  }
  DropRepeats(&runs);
  std::ranges::stable_sort(runs, {}, &Run::name);
  NumberNamesakes(&runs);
  return runs;
}

Json SummaryOf(const Run& run) {
  report::Notices ignored;
  const report::RunFiles files(run.path, &ignored);
  const Json facts = files.ReadObject("run.json");
  const double seconds_ago = SecondsSinceWritten(run.path + "/metrics.jsonl");
  Json summary = {{"name", run.name},
                  {"state", StateOf(run, seconds_ago)},
                  {"started_at", facts.value("started_at", "")},
                  {"seconds_ago", seconds_ago},
                  {"report", files.Exists("report.html")},
                  {"attributions", Json::array()},
                  {"last", Json::object()}};
  if (const auto model = facts.find("model"); model != facts.end() && model->is_object()) {
    summary["model"] = model->value("path", "");
  }
  for (const int64_t step : files.CaptureSteps()) {
    if (files.Exists("captures/step_" + std::to_string(step) + "/attribution.html")) {
      summary["attributions"].push_back(step);
    }
  }
  // A number may be in an earlier line only: evaluations are not made in each step.
  for (const std::string& line : LastLines(run.path + "/metrics.jsonl")) {
    const Json row = ParseLine(line);
    if (!summary.contains("step") && row.contains("step")) summary["step"] = row["step"];
    for (const std::string_view key : kListed) {
      const auto value = row.find(key);
      if (value != row.end() && value->is_number() && !summary["last"].contains(key)) {
        summary["last"][std::string(key)] = *value;
      }
    }
  }
  return summary;
}

}  // namespace tandem::ui
