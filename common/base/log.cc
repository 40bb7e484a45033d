#include "common/base/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <deque>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/printable.h"
#include "common/base/status_macros.h"

namespace tandem::log {
namespace {

struct Sinks {
  LogOptions options;
  std::shared_ptr<spdlog::logger> logger;
};

std::shared_ptr<spdlog::logger> MakeLogger(std::vector<spdlog::sink_ptr> sinks) {
  auto logger = std::make_shared<spdlog::logger>("tandem", sinks.begin(), sinks.end());
  logger->set_pattern("%v");  // this file renders whole lines
  logger->set_level(spdlog::level::trace);
  logger->flush_on(spdlog::level::trace);
  return logger;
}

// The sinks are never destroyed, because threads may log while the process ends.
Sinks& GlobalSinks() {
  static Sinks* const sinks =
      new Sinks{{}, MakeLogger({std::make_shared<spdlog::sinks::stderr_sink_mt>()})};
  return *sinks;
}

class Memory {
 public:
  void Add(std::string_view line) {
    const std::lock_guard<std::mutex> lock(mu_);
    lines_.push_back({++newest_, std::string(line.substr(0, kRememberedLineBytes))});
    if (lines_.size() > kRememberedLines) lines_.pop_front();
  }

  std::vector<NumberedLine> Last(size_t max_lines, int64_t after) const {
    const std::lock_guard<std::mutex> lock(mu_);
    if (after > newest_) after = 0;
    const auto newer = static_cast<size_t>(newest_ - after);
    const size_t count = std::min({max_lines, newer, lines_.size()});
    return {lines_.end() - static_cast<std::ptrdiff_t>(count), lines_.end()};
  }

 private:
  mutable std::mutex mu_;
  std::deque<NumberedLine> lines_;
  int64_t newest_ = 0;
};

// Never destroyed either.
Memory& GlobalMemory() {
  static Memory* const memory = new Memory;
  return *memory;
}

const char* Name(Level level) {
  constexpr const char* kNames[] = {"DEBUG", "INFO", "WARNING", "ERROR"};
  return kNames[static_cast<size_t>(level)];
}

// Returns `text` with quotes, control characters escaped and invalid UTF-8 replaced.
std::string JsonString(std::string_view text) {
  return nlohmann::json(std::string(text))
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string TextValue(const Field& field) {
  const bool plain = !field.value.empty() &&
                     field.value.find_first_of(" =\"\\") == std::string::npos &&
                     Printable(field.value) == field.value;
  return plain ? field.value : JsonString(field.value);
}

std::string TextLine(const std::string& role, Level level, std::string_view message,
                     std::initializer_list<Field> fields) {
  std::string line = absl::StrCat(Rfc3339Now(), " ", Name(level), " ", role,
                                  role.empty() ? "" : ": ", std::string(message));
  for (const Field& field : fields) {
    absl::StrAppend(&line, " ", field.name, "=", TextValue(field));
  }
  return line;
}

std::string JsonLine(const std::string& role, Level level, std::string_view message,
                     std::initializer_list<Field> fields) {
  std::string line =
      absl::StrCat(R"({"time":")", Rfc3339Now(), R"(","level":")", Name(level), R"(","role":)",
                   JsonString(role), R"(,"message":)", JsonString(message));
  for (const Field& field : fields) {
    absl::StrAppend(&line, ",", JsonString(field.name), ":",
                    field.quoted ? JsonString(field.value) : field.value);
  }
  return line + "}";
}

}  // namespace

void Field::SetNumber(double number) { value = JsonNumber(number); }

absl::Status Configure(const LogOptions& options) {
  std::vector<spdlog::sink_ptr> sinks = {std::make_shared<spdlog::sinks::stderr_sink_mt>()};
  if (!options.file.empty()) {
    try {
      sinks.push_back(std::make_shared<spdlog::sinks::basic_file_sink_mt>(options.file));
    } catch (const spdlog::spdlog_ex& error) {
      return Unavailable("log file ", options.file, " cannot be opened: ", error.what());
    }
  }
  GlobalSinks().logger = MakeLogger(std::move(sinks));
  GlobalSinks().options = options;
  return absl::OkStatus();
}

void Write(Level level, std::string_view message, std::initializer_list<Field> fields) {
  const Sinks& sinks = GlobalSinks();
  if (level < sinks.options.level) return;
  // Escaping keeps a record on one line and keeps its values from controlling a terminal.
  const std::string line = Printable(sinks.options.format == Format::kJson
                                         ? JsonLine(sinks.options.role, level, message, fields)
                                         : TextLine(sinks.options.role, level, message, fields));
  GlobalMemory().Add(line);
  sinks.logger->log(spdlog::level::info, spdlog::string_view_t(line.data(), line.size()));
}

std::vector<NumberedLine> LastLines(size_t max_lines, int64_t after) {
  return GlobalMemory().Last(max_lines, std::max<int64_t>(0, after));
}

}  // namespace tandem::log
