#include "drift_lab/phase/grid.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/mutex.h"
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

// Hands out runs, and stores the results in the order of the plan, whichever thread finishes first.
// Thread-safe.
class RunQueue {
 public:
  RunQueue(std::vector<PlannedRun> missing, RunStore& store, const GridHooks& hooks)
      : missing_(std::move(missing)), store_(store), hooks_(hooks) {}

  // Null if there is nothing more to do.
  const PlannedRun* Next() {
    MutexLock lock(&mu_);
    if (!status_.ok() || next_ == missing_.size()) return nullptr;
    if (hooks_.should_stop && hooks_.should_stop()) {
      status_ = Cancelled("stopped after ", num_stored_, " of ", missing_.size(),
                          " runs; the same command goes on");
      return nullptr;
    }
    return &missing_[next_++];
  }

  void Finish(const PlannedRun* run, RunResult result) {
    MutexLock lock(&mu_);
    finished_.emplace(static_cast<size_t>(run - missing_.data()), std::move(result));
    for (auto first = finished_.find(num_stored_); first != finished_.end();
         first = finished_.find(num_stored_)) {
      const absl::Status status = store_.Add(missing_[num_stored_], first->second);
      if (!status.ok()) {
        status_ = status;
        return;
      }
      finished_.erase(first);
      ++num_stored_;
    }
    if (hooks_.on_progress) {
      hooks_.on_progress(static_cast<int64_t>(num_stored_), static_cast<int64_t>(missing_.size()),
                         *run);
    }
  }

  absl::Status status() {
    MutexLock lock(&mu_);
    return status_;
  }

 private:
  const std::vector<PlannedRun> missing_;
  Mutex mu_;
  RunStore& store_ ABSL_GUARDED_BY(mu_);
  const GridHooks& hooks_ ABSL_GUARDED_BY(mu_);
  size_t next_ ABSL_GUARDED_BY(mu_) = 0;
  size_t num_stored_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<size_t, RunResult> finished_ ABSL_GUARDED_BY(mu_);  // that wait for earlier ones
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

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
    return InvalidArgument(path_,
                           ":1: not runs of this version of the toy; name another directory, or "
                           "remove the file to make its runs again");
  }
  int number = 2;
  for (size_t begin = kFormatLine.size(), end; begin < text.size(); begin = end + 1, ++number) {
    end = text.find('\n', begin);
    const absl::Status status = ReadLine(text.substr(begin, end - begin));
    if (!status.ok()) {
      return InvalidArgument(path_, ":", number, ": ", status.message());
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
    return InvalidArgument("not a run: ", error.what());
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

RunResult MakeRun(const PlannedRun& run) { return RunToy(OptionsOf(run)); }

absl::Status RunGrid(std::span<const PlannedRun> plan, int threads,
                     const std::function<RunResult(const PlannedRun&)>& make, RunStore& store,
                     const GridHooks& hooks) {
  std::vector<PlannedRun> missing;
  std::copy_if(plan.begin(), plan.end(), std::back_inserter(missing),
               [&](const PlannedRun& run) { return store.Find(run) == nullptr; });
  RunQueue queue(std::move(missing), store, hooks);
  const auto work = [&queue, &make] {
    while (const PlannedRun* run = queue.Next()) queue.Finish(run, make(*run));
  };
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
  return queue.status();
}

}  // namespace tandem::drift
