// A structured log: a message with named values, written as text or as JSON lines to stderr and
// optionally to a file. Control characters are escaped (printable.h). spdlog is not visible to
// callers. Thread-safe. Never pass a secret here.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace tandem::log {

enum class Level { kDebug, kInfo, kWarning, kError };
enum class Format { kText, kJson };

struct LogOptions {
  Level level = Level::kInfo;
  Format format = Format::kText;
  std::string file;  // empty: stderr only
  std::string role;  // "trainer", "rollout_server": in every line
};

// Call it once, before threads start. Until then, lines go to stderr as text from level kInfo on.
//   UNAVAILABLE  the file cannot be opened
absl::Status Configure(const LogOptions& options);

// The process remembers its newest lines, whatever the options: kRememberedLines of them, each cut
// at kRememberedLineBytes. They are numbered from 1 in the order in which they were written.
struct NumberedLine {
  int64_t number = 0;
  std::string text;
};
inline constexpr size_t kRememberedLines = 2000;
inline constexpr size_t kRememberedLineBytes = 4096;

// Returns the newest remembered lines with a number above `after`, at most `max_lines` of them,
// oldest first. If no line has reached the number `after` yet, the caller's number comes from an
// earlier process, and counts as 0.
std::vector<NumberedLine> LastLines(size_t max_lines, int64_t after = 0);

// One named value. It is rendered on construction; in JSON, numbers have no quotes.
struct Field {
  template <typename T>
  requires std::is_arithmetic_v<T> Field(std::string_view name, T number)
      : name(name), quoted(false) {
    SetNumber(number);
  }
  Field(std::string_view name, bool flag)
      : name(name), value(flag ? "true" : "false"), quoted(false) {}
  Field(std::string_view name, std::string text) : name(name), value(std::move(text)) {}
  Field(std::string_view name, std::string_view text) : name(name), value(text) {}
  Field(std::string_view name, const char* text) : name(name), value(text) {}

  std::string name;
  std::string value;
  bool quoted = true;

 private:
  void SetNumber(double number);
  void SetNumber(float number) { SetNumber(static_cast<double>(number)); }
  template <typename T>
  void SetNumber(T number) {
    value = std::to_string(number);
  }
};

void Write(Level level, std::string_view message, std::initializer_list<Field> fields = {});

inline void Debug(std::string_view m, std::initializer_list<Field> f = {}) {
  Write(Level::kDebug, m, f);
}
inline void Info(std::string_view m, std::initializer_list<Field> f = {}) {
  Write(Level::kInfo, m, f);
}
inline void Warning(std::string_view m, std::initializer_list<Field> f = {}) {
  Write(Level::kWarning, m, f);
}
inline void Error(std::string_view m, std::initializer_list<Field> f = {}) {
  Write(Level::kError, m, f);
}

}  // namespace tandem::log
