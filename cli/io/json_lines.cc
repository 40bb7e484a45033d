#include "cli/io/json_lines.h"

#include <cstdio>
#include <iostream>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/foreign_json.h"
#include "common/base/json.h"
#include "common/base/printable.h"
#include "common/base/status_macros.h"

namespace tandem::cli {

JsonLineReader::JsonLineReader(std::string name, std::unique_ptr<std::ifstream> file)
    : name_(std::move(name)), file_(std::move(file)), in_(file_ != nullptr ? *file_ : std::cin) {}

absl::StatusOr<std::unique_ptr<JsonLineReader>> JsonLineReader::Open(const std::string& path) {
  if (path == "-") {
    return std::unique_ptr<JsonLineReader>(new JsonLineReader("standard input", nullptr));
  }
  auto file = std::make_unique<std::ifstream>(path);
  if (!*file) return NotFound(path, ": cannot be opened for reading");
  return std::unique_ptr<JsonLineReader>(new JsonLineReader(path, std::move(file)));
}

absl::Status JsonLineReader::ForEach(absl::FunctionRef<absl::Status(nlohmann::json line)> use) {
  const auto parse_and_use = [&](const std::string& text) -> absl::Status {
    nlohmann::json line = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (line.is_discarded()) {
      return InvalidArgument(JsonFault(text), "; want one JSON object a line");
    }
    if (line.is_object()) return use(std::move(line));
    return InvalidArgument("a JSON ", line.type_name(), "; want one JSON object a line");
  };
  std::string text;
  for (int64_t number = 1; std::getline(in_, text); ++number) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    const absl::Status status = parse_and_use(text);
    if (status.ok()) continue;
    return absl::Status(status.code(), absl::StrCat(name_, ":", number, ": ", status.message()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> IdsField(const nlohmann::json& line, const char* name) {
  const auto it = line.find(name);
  if (it == line.end() || !it->is_array()) {
    return InvalidArgument("\"", name, "\": want an array of token ids");
  }
  std::vector<int32_t> ids;
  ids.reserve(it->size());
  for (size_t i = 0; i < it->size(); ++i) {
    const nlohmann::json& id = (*it)[i];
    if (!id.is_number_integer() || id.get<int64_t>() < 0 ||
        id.get<int64_t>() > std::numeric_limits<int32_t>::max()) {
      return InvalidArgument("\"", name, "\"[", i, "]: want a token id, not ", id.dump());
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

absl::StatusOr<std::string> TextField(const nlohmann::json& line, const char* name) {
  const auto it = line.find(name);
  if (it == line.end() || !it->is_string()) {
    return InvalidArgument("\"", name, "\": want a string");
  }
  return it->get<std::string>();
}

absl::StatusOr<bool> FlagField(const nlohmann::json& line, const char* name, bool if_absent) {
  const auto it = line.find(name);
  if (it == line.end()) return if_absent;
  if (!it->is_boolean()) {
    return InvalidArgument("\"", name, "\": want true or false");
  }
  return it->get<bool>();
}

absl::Status CheckKeys(const nlohmann::json& line, std::span<const char* const> known) {
  for (const auto& [key, value] : line.items()) {
    bool found = false;
    for (const char* name : known) found |= key == name;
    if (!found) {
      return InvalidArgument("unknown key \"", key, "\"; a line may hold ",
                             absl::StrJoin(known, ", "));
    }
  }
  return absl::OkStatus();
}

std::string FloatsToJson(std::span<const float> values, size_t num_null) {
  std::string out = "[";
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out += ',';
    out += i < num_null ? "null" : JsonNumber(values[i]);
  }
  return out + "]";
}

std::string IdsToJson(std::span<const int32_t> ids) {
  return absl::StrCat("[", absl::StrJoin(ids, ","), "]");
}

std::string TextToJson(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

void PrintLine(const std::string& text) {
  const std::string line = Printable(text);
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fputc('\n', stdout);
  std::fflush(stdout);
}

}  // namespace tandem::cli
