#include "drift_lab/phase/run_store.h"

#include <cmath>
#include <cstdio>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tandem::drift {
namespace {

using nlohmann::json;

// To be raised whenever the same options give other numbers, so that a file never mixes both.
constexpr std::string_view kFormatLine = "{\"format\":\"tandem-toy-runs-1\"}\n";

// Five significant digits are more than any table or threshold uses. NaN is null.
std::string Number(double value) {
  return std::isfinite(value) ? absl::StrFormat("%.5g", value) : "null";
}

double NumberOf(const json& value) {
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

std::string TraceJson(const std::vector<TraceRow>& trace) {
  std::string out = "{";
  for (size_t w = 0; w < kNumWatched; ++w) {
    absl::StrAppend(&out, w == 0 ? "" : ",", "\"", WatchedName(static_cast<Watched>(w)), "\":[");
    for (size_t row = 0; row < trace.size(); ++row) {
      absl::StrAppend(&out, row == 0 ? "" : ",", Number(trace[row][w]));
    }
    absl::StrAppend(&out, "]");
  }
  return absl::StrCat(out, "}");
}

std::vector<TraceRow> TraceOf(const json& columns) {
  std::vector<TraceRow> trace(columns.at(WatchedName(Watched::kScore)).size());
  for (size_t w = 0; w < kNumWatched; ++w) {
    const json& column = columns.at(WatchedName(static_cast<Watched>(w)));
    for (size_t row = 0; row < trace.size(); ++row) trace[row][w] = NumberOf(column.at(row));
  }
  return trace;
}

}  // namespace

RunStore::Key RunStore::KeyOf(const PlannedRun& run) {
  return {run.cell.name, std::string(MethodName(run.method)), run.seed, run.cell.steps};
}

absl::StatusOr<std::unique_ptr<RunStore>> RunStore::Open(const std::string& path) {
  auto store = std::unique_ptr<RunStore>(new RunStore(path));
  absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok() && !absl::IsNotFound(text.status())) return text.status();
  const std::string whole = text.ok() ? text->substr(0, text->rfind('\n') + 1) : "";
  if (whole.empty()) {
    TANDEM_RETURN_IF_ERROR(WriteFileAtomically(path, kFormatLine));
  } else {
    TANDEM_RETURN_IF_ERROR(store->Read(whole));
    if (whole.size() < text->size()) TANDEM_RETURN_IF_ERROR(WriteFileAtomically(path, whole));
  }
  TANDEM_ASSIGN_OR_RETURN(store->file_, AppendFile::Open(path));
  return store;
}

absl::Status RunStore::Read(const std::string& text) {
  if (!text.starts_with(kFormatLine)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_,
                     ":1: not runs of this version of the toy; name another directory, or "
                     "remove the file to make its runs again"));
  }
  int number = 2;
  for (size_t begin = kFormatLine.size(), end; begin < text.size(); begin = end + 1, ++number) {
    end = text.find('\n', begin);
    const absl::Status status = ReadLine(text.substr(begin, end - begin));
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(path_, ":", number, ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

absl::Status RunStore::ReadLine(const std::string& line) {
  try {
    const json run = json::parse(line);
    RunResult result;
    result.start = run.at("start").get<double>();
    result.score = run.at("score").get<double>();
    result.mean_score = run.at("mean_score").get<double>();
    result.highest = run.at("highest").get<double>();
    result.halved_at = run.at("halved_at").get<int>();
    result.trace = TraceOf(run.at("trace"));
    runs_[{run.at("cell").get<std::string>(), run.at("method").get<std::string>(),
           run.at("seed").get<uint64_t>(), run.at("steps").get<int>()}] = std::move(result);
  } catch (const json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("not a run: ", error.what()));
  }
  return absl::OkStatus();
}

const RunResult* RunStore::Find(const PlannedRun& run) const {
  const auto found = runs_.find(KeyOf(run));
  return found == runs_.end() ? nullptr : &found->second;
}

absl::Status RunStore::Add(const PlannedRun& run, const RunResult& result) {
  const std::string line = absl::StrCat(
      "{\"cell\":\"", run.cell.name, "\",\"method\":\"", MethodName(run.method),
      "\",\"seed\":", run.seed, ",\"steps\":", run.cell.steps, ",\"start\":", Number(result.start),
      ",\"score\":", Number(result.score), ",\"mean_score\":", Number(result.mean_score),
      ",\"highest\":", Number(result.highest), ",\"halved_at\":", result.halved_at,
      ",\"trace\":", TraceJson(result.trace), "}");
  TANDEM_RETURN_IF_ERROR(file_->Append(line + "\n"));
  return ReadLine(line);
}

}  // namespace tandem::drift
