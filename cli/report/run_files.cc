#include "cli/report/run_files.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/json.h"
#include "common/files/file_system.h"

namespace tandem::report {
namespace {

constexpr int kMaxDepth = 64;

Json Parse(std::string_view text) {
  if (NestsDeeperThan(text, kMaxDepth)) return Json(Json::value_t::discarded);
  return Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
}

}  // namespace

std::string At(const std::string& name, int64_t line) { return absl::StrCat(name, ":", line); }

void Notices::Add(const std::string& file, const std::string& message) {
  auto entry = std::find_if(files_.begin(), files_.end(),
                            [&](const FileNotices& notices) { return notices.file == file; });
  if (entry == files_.end()) entry = files_.insert(files_.end(), FileNotices{file, {}, 0});
  if (entry->lines.size() < kMaxPerFile) {
    entry->lines.push_back(message);
  } else {
    ++entry->num_more;
  }
}

std::vector<std::string> Notices::Lines() const {
  std::vector<std::string> lines;
  for (const FileNotices& notices : files_) {
    lines.insert(lines.end(), notices.lines.begin(), notices.lines.end());
    if (notices.num_more > 0) {
      lines.push_back(absl::StrCat(notices.file, ": ", notices.num_more, " more like these"));
    }
  }
  return lines;
}

RunFiles::RunFiles(std::string directory, Notices* notices)
    : directory_(std::move(directory)), notices_(notices) {}

bool RunFiles::Exists(const std::string& name) const {
  std::error_code error;
  return std::filesystem::exists(directory_ + "/" + name, error);
}

std::string RunFiles::ReadText(const std::string& name) const {
  if (!Exists(name)) return "";
  absl::StatusOr<std::string> text = ReadFile(directory_ + "/" + name);
  if (text.ok()) return *std::move(text);
  notices_->Add(name, absl::StrCat(name, ": ", std::string(text.status().message())));
  return "";
}

Json RunFiles::ReadObject(const std::string& name) const {
  const std::string text = ReadText(name);
  if (text.empty()) return Json::object();
  Json value = Parse(text);
  if (value.is_object()) return value;
  notices_->Add(name, absl::StrCat(name, ": not a JSON object; ignored"));
  return Json::object();
}

void RunFiles::ForEachLine(const std::string& name,
                           const std::function<void(const Json&, int64_t line)>& use) const {
  const std::string text = ReadText(name);
  int64_t line_number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    const bool complete = end != std::string::npos;
    const std::string_view line(text.data() + begin, (complete ? end : text.size()) - begin);
    begin = complete ? end + 1 : text.size();
    ++line_number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const Json value = Parse(line);
    if (value.is_object()) {
      use(value, line_number);
    } else if (complete) {
      notices_->Add(name, absl::StrCat(At(name, line_number), ": not a JSON object (", line.size(),
                                       " bytes); line skipped"));
    }
  }
}

std::vector<int64_t> RunFiles::Numbered(const std::string& folder, std::string_view prefix,
                                        std::string_view suffix) const {
  std::vector<int64_t> numbers;
  std::error_code error;
  for (std::filesystem::directory_iterator it(directory_ + "/" + folder, error), end;
       !error && it != end; it.increment(error)) {
    const std::string file = it->path().filename().string();
    absl::string_view digits = file;
    int64_t number = 0;
    if (absl::ConsumePrefix(&digits, {prefix.data(), prefix.size()}) &&
        absl::ConsumeSuffix(&digits, {suffix.data(), suffix.size()}) &&
        absl::SimpleAtoi(digits, &number)) {
      numbers.push_back(number);
    }
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

std::vector<int64_t> RunFiles::RolloutSteps() const {
  return Numbered("rollouts", "step_", ".jsonl");
}

std::vector<int64_t> RunFiles::CaptureSteps() const {
  std::vector<int64_t> steps = Numbered("captures", "step_", "");
  std::erase_if(steps, [this](int64_t step) {
    return !Exists("captures/step_" + std::to_string(step) + "/manifest.json");
  });
  return steps;
}

}  // namespace tandem::report
