// Reads a run directory with tolerance, because the report must also work for a run in progress, a
// run that died while it wrote a line, and files that a user edited. Only the report uses it.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::report {

using Json = nlohmann::json;

// What was skipped and why, in the order in which it was found, for the top of the page.
// Thread-compatible.
class Notices {
 public:
  // At most kMaxPerFile notices are kept per file. The others are counted in a last line.
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

  // The text of a file. Empty if it is missing, or if it cannot be read, which is noted.
  std::string ReadText(const std::string& name) const;

  // The JSON object in a file. Empty if the file is missing or malformed, which is noted.
  Json ReadObject(const std::string& name) const;

  // Calls `use` with each JSON object of a JSON-lines file and its line number, which starts at 1.
  // A line that is not an object is noted and skipped. A malformed last line without a newline is a
  // write in progress and is skipped without a notice.
  void ForEachLine(const std::string& name,
                   const std::function<void(const Json&, int64_t line)>& use) const;

  // Steps N for which rollouts/step_N.jsonl exists, ascending.
  std::vector<int64_t> RolloutSteps() const;

  // Steps N for which captures/step_N is a complete capture, ascending.
  std::vector<int64_t> CaptureSteps() const;

 private:
  // The numbers N of the entries PREFIX<N>SUFFIX of a folder, ascending.
  std::vector<int64_t> Numbered(const std::string& folder, std::string_view prefix,
                                std::string_view suffix) const;

  const std::string directory_;
  Notices* const notices_;
};

// "name:line", as compilers print it.
std::string At(const std::string& name, int64_t line);

}  // namespace tandem::report
