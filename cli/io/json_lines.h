// Reads and writes JSON lines, for the tools that answer each input line with an output line.
// Errors name file and line. The lines before a bad one have been answered by then.
#pragma once

#include <cstdint>
#include <fstream>
#include <istream>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace tandem::cli {

// Reads one JSON object per line and skips empty lines. Thread-compatible.
class JsonLineReader {
 public:
  // Opens a file, or standard input if `path` is "-".
  //   NOT_FOUND  the file cannot be opened
  static absl::StatusOr<std::unique_ptr<JsonLineReader>> Open(const std::string& path);

  // Calls `use` with one object after the other. Ends at the first error, of `use` or
  //   INVALID_ARGUMENT  the line is not JSON (with the byte) or not an object
  // and returns it with "PATH:LINE: " before its message.
  absl::Status ForEach(absl::FunctionRef<absl::Status(nlohmann::json line)> use);

 private:
  JsonLineReader(std::string name, std::unique_ptr<std::ifstream> file);

  const std::string name_;
  const std::unique_ptr<std::ifstream> file_;  // null: standard input
  std::istream& in_;
};

// Fields of one line.
//   INVALID_ARGUMENT  the field (named) is missing or has another type
absl::StatusOr<std::vector<int32_t>> IdsField(const nlohmann::json& line, const char* name);
absl::StatusOr<std::string> TextField(const nlohmann::json& line, const char* name);
absl::StatusOr<bool> FlagField(const nlohmann::json& line, const char* name, bool if_absent);

// Checks that the line has no keys except those of `known`.
//   INVALID_ARGUMENT  names the first unknown key and the known ones
absl::Status CheckKeys(const nlohmann::json& line, std::span<const char* const> known);

// JSON arrays. Floats have nine significant digits and are null if they are not finite; the first
// `num_null` elements are null regardless of their values.
std::string FloatsToJson(std::span<const float> values, size_t num_null = 0);
std::string IdsToJson(std::span<const int32_t> ids);
std::string TextToJson(std::string_view text);  // quoted, escaped, ASCII; bad UTF-8 becomes U+FFFD

// Prints one line on standard output and flushes it, so that a pipe's reader sees it at once.
// Terminal control characters are escaped (printable.h).
void PrintLine(const std::string& line);

}  // namespace tandem::cli
