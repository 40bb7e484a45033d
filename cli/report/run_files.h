// Tolerant reading of a run directory: a report must come out of a run in progress, of one that
// died in mid-line, and of one a user edited. Used by the report alone.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::report {

using Json = nlohmann::json;

// What was skipped and why, in the order found; shown at the top of the page. Thread-compatible.
class Notices {
 public:
  // At most kMaxPerFile lines are kept for one file; the rest are counted in one closing line.
  static constexpr int kMaxPerFile = 10;

  void Add(const std::string& file, const std::string& message);
  std::vector<std::string> Lines() const;

 private:
  struct FileNotices {
    std::string file;
    std::vector<std::string> lines;
    int64_t num_more = 0;
  };
  std::vector<FileNotices> files_;
};

// One run directory. Thread-compatible. `notices` must outlive it.
class RunFiles {
 public:
  RunFiles(std::string directory, Notices* notices);

  bool Exists(const std::string& name) const;

  // The text of a file; empty when it is missing or cannot be read (noted unless missing).
  std::string ReadText(const std::string& name) const;

  // A file that holds one JSON object; an empty object when missing or malformed (noted).
  Json ReadObject(const std::string& name) const;

  // Calls `use` with each JSON object of a JSON-lines file and its line number from 1. A malformed
  // line and a value that is not an object are noted and skipped; a last line without a newline
  // that does not parse is a write in progress and is skipped in silence.
  void ForEachLine(const std::string& name,
                   const std::function<void(const Json&, int64_t line)>& use) const;

  // Steps N for which rollouts/step_N.jsonl exists, ascending.
  std::vector<int64_t> RolloutSteps() const;

  // Steps N for which captures/step_N is a whole capture, ascending.
  std::vector<int64_t> CaptureSteps() const;

 private:
  // N of the entries PREFIX<N>SUFFIX of a folder, ascending.
  std::vector<int64_t> Numbered(const std::string& folder, std::string_view prefix,
                                std::string_view suffix) const;

  const std::string directory_;
  Notices* const notices_;
};

// "name:line", as compilers print it.
std::string At(const std::string& name, int64_t line);

}  // namespace tandem::report
