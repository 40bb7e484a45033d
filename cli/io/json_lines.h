// JSON lines in and out of the plain tools: every error names file and line; what came before a bad
// line has been answered by then.
#pragma once

#include <cstdint>
#include <fstream>
#include <istream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace tandem::cli {

// Reads one JSON object a line; empty lines are skipped. Thread-compatible.
class JsonLineReader {
 public:
  // `path` "-" is standard input.
  //   NOT_FOUND  the file cannot be opened
  static absl::StatusOr<std::unique_ptr<JsonLineReader>> Open(const std::string& path);

  // The next object; nullopt at the end.
  //   INVALID_ARGUMENT  "PATH:LINE: ..." not JSON (with the byte), or not an object
  absl::StatusOr<std::optional<nlohmann::json>> Next();

  // `status` with "PATH:LINE: " of the line read last in front.
  absl::Status At(const absl::Status& status) const;

 private:
  JsonLineReader(std::string name, std::unique_ptr<std::ifstream> file);

  const std::string name_;
  const std::unique_ptr<std::ifstream> file_;  // null: standard input
  std::istream& in_;
  int64_t line_ = 0;
};

// Fields of one line.
//   INVALID_ARGUMENT  missing or of another type (field named)
absl::StatusOr<std::vector<int32_t>> IdsField(const nlohmann::json& line, const char* name);
absl::StatusOr<std::string> TextField(const nlohmann::json& line, const char* name);
absl::StatusOr<bool> FlagField(const nlohmann::json& line, const char* name, bool if_absent);

// Only keys of `known` may stand in the line.
//   INVALID_ARGUMENT  the first other key, with those that may
absl::Status CheckKeys(const nlohmann::json& line, std::span<const char* const> known);

// JSON text of an array: nine significant digits, null where not finite; the first `num_null`
// elements are null whatever they hold.
std::string FloatsToJson(std::span<const float> values, size_t num_null = 0);
std::string IdsToJson(std::span<const int32_t> ids);
std::string TextToJson(std::string_view text);  // quoted, escaped, ASCII; bad UTF-8 as U+FFFD

// One line to standard output, flushed, so that a pipe sees it at once.
void PrintLine(const std::string& line);

// `status` as an error of the command line, whatever its code: Fail makes exit code 2 of it. For
// what a flag says that only the command itself can check.
absl::Status AsUsageError(const absl::Status& status);

// Prints "tandem: MESSAGE", as every command says what went wrong (command_line.h).
void PrintFailure(const absl::Status& status);

// PrintFailure; returns the exit code that fits a command whose
// flags could be read: bad input is data, so 3. It is 2 for AsUsageError, and for a place to write
// to that is taken (ALREADY_EXISTS).
int Fail(const absl::Status& status);

// The same for an error of the flags themselves: ExitCodeFor, which makes 2 of most.
int FailUsage(const absl::Status& status);

}  // namespace tandem::cli
