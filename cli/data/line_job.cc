#include "cli/data/line_job.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/exit_codes.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"

namespace tandem::cli {
namespace {

using nlohmann::json;

constexpr char kLine[] = "line";

struct InputLine {
  int64_t number = 0;  // in the file, from 1
  std::string text;
};

absl::Status AtLine(const std::string& file, int64_t number, const absl::Status& status) {
  absl::Status placed(status.code(), absl::StrCat(file, ":", number, ": ", status.message()));
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { placed.SetPayload(url, payload); });
  return placed;
}

absl::StatusOr<std::vector<InputLine>> ReadInputLines(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const std::string contents, ReadFile(path));
  std::vector<InputLine> lines;
  int64_t number = 0;
  for (const absl::string_view text : absl::StrSplit(contents, '\n')) {
    ++number;
    if (text.find_first_not_of(" \t\r") == absl::string_view::npos) continue;
    lines.push_back({number, std::string(text)});
  }
  return lines;
}

// The number of the last line that has a row in `path`; 0 without one. Cuts off a row that was not
// written whole.
absl::StatusOr<int64_t> LastDone(const std::string& path) {
  if (!std::filesystem::exists(path)) return 0;
  TANDEM_ASSIGN_OR_RETURN(const std::string contents, ReadFile(path));
  const size_t whole = contents.rfind('\n') + 1;  // npos + 1 is 0
  if (whole < contents.size()) {
    std::error_code failed;
    std::filesystem::resize_file(path, whole, failed);
    if (failed) {
      return trainer::WithExitCode(Unavailable(path, ": ", failed.message()), ExitCode::kStorage);
    }
  }
  int64_t last = 0, number = 0;
  for (const absl::string_view text : absl::StrSplit(contents.substr(0, whole), '\n')) {
    ++number;
    if (text.empty()) continue;
    const json row = json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!row.is_object() || !row.contains(kLine) || !row[kLine].is_number_integer()) {
      return InvalidArgument(path, ":", number,
                             " has no \"line\": it was not written by this "
                             "command; name another --out");
    }
    last = std::max(last, row[kLine].get<int64_t>());
  }
  return last;
}

// Notes the settings of a job that begins; refuses to go on with others.
absl::Status CheckSettings(const LineJob& job, bool goes_on) {
  const std::string path = job.out + ".settings";
  if (goes_on && std::filesystem::exists(path)) {
    TANDEM_ASSIGN_OR_RETURN(const std::string was, ReadFile(path));
    if (was == job.settings) return absl::OkStatus();
    const std::vector<std::string> before = absl::StrSplit(was, '\n');
    const std::vector<std::string> now = absl::StrSplit(job.settings, '\n');
    for (size_t i = 0; i < std::min(before.size(), now.size()); ++i) {
      if (before[i] == now[i]) continue;
      return InvalidArgument(job.out, " was begun with `", before[i], "`, not `", now[i],
                             "`: give the same again, or name another --out");
    }
    return InvalidArgument(job.out, " was begun with other settings: name another --out");
  }
  return trainer::WithExitCode(WriteFileAtomically(path, job.settings), ExitCode::kStorage);
}

// The rows of the lines that are done, written as soon as all before them are.
class OrderedRows {
 public:
  OrderedRows(const std::string& path, const std::vector<InputLine>& lines, size_t begin)
      : path_(path), lines_(lines), next_(begin), out_(path, std::ios::app) {}

  // Puts what became of line `index`.
  absl::Status Put(size_t index, std::optional<nlohmann::ordered_json> row) {
    done_[index] = std::move(row);
    for (auto first = done_.begin(); first != done_.end() && first->first == next_;
         first = done_.erase(first), ++next_) {
      if (!first->second.has_value()) {
        ++skipped;
        continue;
      }
      nlohmann::ordered_json& written = *first->second;
      written[kLine] = lines_[next_].number;
      out_ << written.dump(-1, ' ', false, json::error_handler_t::replace) << "\n" << std::flush;
      ++rows;
    }
    if (out_.good()) return absl::OkStatus();
    return trainer::WithExitCode(Unavailable(path_, " cannot be written"), ExitCode::kStorage);
  }

  int64_t rows = 0, skipped = 0;

 private:
  const std::string path_;
  const std::vector<InputLine>& lines_;
  size_t next_;
  std::map<size_t, std::optional<nlohmann::ordered_json>> done_;
  std::ofstream out_;
};

absl::StatusOr<std::optional<nlohmann::ordered_json>> WorkOn(const InputLine& line,
                                                             const LineWork& work) {
  const json parsed = json::parse(line.text, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return absl::InvalidArgumentError("not a JSON object");
  return work(parsed, line.number);
}

}  // namespace

absl::StatusOr<LineCounts> RunLines(
    const LineJob& job, const LineWork& work,
    const std::function<void(int64_t done, int64_t total)>& progress) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<InputLine> lines, ReadInputLines(job.data));
  TANDEM_ASSIGN_OR_RETURN(const int64_t last, LastDone(job.out));
  TANDEM_RETURN_IF_ERROR(CheckSettings(job, last > 0));
  const auto begin = static_cast<size_t>(
      std::ranges::find_if(lines, [&](const InputLine& line) { return line.number > last; }) -
      lines.begin());
  const auto total = static_cast<int64_t>(lines.size());
  Mutex mu;
  OrderedRows rows(job.out, lines, begin);
  // Guarded by mu, as `rows`:
  size_t next = begin, first_failed = lines.size();
  auto done = static_cast<int64_t>(begin);
  absl::Status failure;
  const auto run = [&] {
    for (;;) {
      size_t index = 0;
      {
        MutexLock lock(&mu);
        if (next >= lines.size() || !failure.ok()) return;
        index = next++;
      }
      auto row = WorkOn(lines[index], work);
      MutexLock lock(&mu);
      absl::Status failed = row.ok() ? rows.Put(index, *std::move(row))
                                     : AtLine(job.data, lines[index].number, row.status());
      if (!failed.ok() && index < first_failed) {
        first_failed = index;
        failure = std::move(failed);
      }
      progress(++done, total);
    }
  };
  std::vector<std::thread> workers;
  for (int64_t i = 0; i < std::min<int64_t>(job.workers, total); ++i) workers.emplace_back(run);
  for (std::thread& worker : workers) worker.join();
  TANDEM_RETURN_IF_ERROR(failure);
  return LineCounts{.lines = total,
                    .resumed = static_cast<int64_t>(begin),
                    .rows = rows.rows,
                    .skipped = rows.skipped};
}

}  // namespace tandem::cli
