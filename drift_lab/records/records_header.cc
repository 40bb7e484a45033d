#include "drift_lab/records/records_header.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/foreign_json.h"
#include "common/base/json.h"
#include "common/base/printable.h"
#include "common/base/status_macros.h"
#include "drift_lab/records/json_rows.h"
#include "drift_lab/records/records_form.h"

namespace tandem::drift {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kMostNestedInHeader = 100;

absl::Status ExpectedInHeader(std::string_view what, const json& found) {
  constexpr size_t kMost = 60;
  const std::string text = Printable(found.dump(-1, ' ', false, json::error_handler_t::replace));
  return InvalidArgument("expected ", what, ", found ", text.substr(0, kMost),
                         text.size() > kMost ? "..." : "");
}

absl::Status GetText(const json& value, std::string& text) {
  if (!value.is_string()) return ExpectedInHeader("a text", value);
  text = value.get<std::string>();
  return absl::OkStatus();
}

// A number of a float type that is whole counts, as JSON does not tell 3 from 3.0.
absl::Status GetWhole(const json& value, int64_t least, std::optional<int64_t>& whole) {
  const std::string what = least == std::numeric_limits<int64_t>::min()
                               ? "a whole number"
                               : absl::StrCat("a whole number of at least ", least);
  const double real = value.is_number() ? value.get<double>() : 0.5;
  if (real != static_cast<double>(static_cast<int64_t>(std::clamp(real, -9e15, 9e15)))) {
    return ExpectedInHeader(what, value);
  }
  whole = value.get<int64_t>();
  return *whole >= least ? absl::OkStatus() : ExpectedInHeader(what, value);
}

absl::Status GetReal(const json& value, std::string_view what, bool (*is_right)(double),
                     std::optional<double>& real) {
  if (!value.is_number() || !is_right(value.get<double>())) return ExpectedInHeader(what, value);
  real = value.get<double>();
  return absl::OkStatus();
}

absl::Status GetOneOf(const json& value, const char* first, const char* second, std::string& text) {
  if (value != first && value != second) {
    return ExpectedInHeader(absl::StrCat("\"", first, "\" or \"", second, "\""), value);
  }
  text = value.get<std::string>();
  return absl::OkStatus();
}

absl::Status GetIds(const json& value, std::vector<int32_t>& ids) {
  if (!value.is_array()) return ExpectedInHeader("a list of token ids", value);
  for (const json& element : value) {
    std::optional<int64_t> id;
    TANDEM_RETURN_IF_ERROR(GetWhole(element, 0, id));
    if (*id > std::numeric_limits<int32_t>::max()) {
      return ExpectedInHeader("token ids below 2^31", element);
    }
    ids.push_back(static_cast<int32_t>(*id));
  }
  return absl::OkStatus();
}

// The fields of an object, each with the function that takes its value.
using Fields = std::vector<std::pair<std::string, std::function<absl::Status(const json&)>>>;

// Errors are "PREFIXfield: expected ..., found ...".
absl::Status TakeFields(const json& object, const std::string& prefix, const Fields& fields) {
  for (const auto& [name, value] : object.items()) {
    const auto field =
        std::ranges::find_if(fields, [&](const auto& pair) { return pair.first == name; });
    if (field == fields.end()) {
      std::vector<std::string> names;
      for (const auto& pair : fields) names.push_back(pair.first);
      return InvalidArgument(
          prefix, Printable(name), ": expected a field of docs/records.md, found another",
          FieldSuggestion(name, names), " (what is your own belongs into `extra`",
          prefix.empty() ? ")" : " of the header)", RightPlace(name, names));
    }
    if (value.is_null()) continue;
    const absl::Status status = field->second(value);
    if (!status.ok()) {
      // An error of a field within the field has the whole path already.
      if (absl::StartsWith(status.message(), absl::StrCat(prefix, name, "."))) return status;
      return InvalidArgument(prefix, name, ": ", status.message());
    }
  }
  return absl::OkStatus();
}

absl::Status GetSide(const json& value, const std::string& name, SideClaims& side) {
  if (!value.is_object()) return ExpectedInHeader("an object", value);
  const auto text = [](std::string& field) {
    return [&field](const json& value) { return GetText(value, field); };
  };
  const auto real = [](std::optional<double>& field, const char* what, bool (*is_right)(double)) {
    return [=, &field](const json& value) { return GetReal(value, what, is_right, field); };
  };
  const auto any = [](double) { return true; };
  const auto is_share = [](double x) { return x >= 0 && x <= 1; };
  Fields fields = {
      {"engine", text(side.engine)},
      {"engine_version", text(side.engine_version)},
      {"dtype", text(side.dtype)},
      {"weights", text(side.weights)},
      {"logprobs",
       [&](const json& value) { return GetOneOf(value, "raw", "processed", side.logprobs); }},
      {"temperature",
       real(side.temperature, "a number of at least 0", [](double x) { return x >= 0; })},
      {"top_k",
       [&](const json& value) {
         return GetWhole(value, std::numeric_limits<int64_t>::min(), side.top_k);
       }},
      {"top_p", real(side.top_p, "a number from 0 to 1", is_share)},
      {"min_p", real(side.min_p, "a number from 0 to 1", is_share)},
      {"repetition_penalty",
       real(side.repetition_penalty, "a number above 0", [](double x) { return x > 0; })},
      {"frequency_penalty", real(side.frequency_penalty, "a number", any)},
      {"presence_penalty", real(side.presence_penalty, "a number", any)},
      {"min_tokens", [&](const json& value) { return GetWhole(value, 0, side.min_tokens); }},
  };
  if (name == "proximal") {
    fields.emplace_back("policy", [&](const json& value) {
      return GetOneOf(value, "proximal", "moving", side.policy);
    });
  }
  return TakeFields(value, name + ".", fields);
}

absl::Status GetColumns(const json& value, std::map<std::string, ColumnOrigin>& columns) {
  if (!value.is_object()) return ExpectedInHeader("an object", value);
  Fields by_name;
  for (const std::string& name : RowFieldNames()) {
    by_name.emplace_back(name, [&columns, name](const json& origin) -> absl::Status {
      if (!origin.is_object()) return ExpectedInHeader("an object", origin);
      ColumnOrigin& column = columns[name];
      const auto text = [](std::string& field) {
        return [&field](const json& value) { return GetText(value, field); };
      };
      return TakeFields(origin, absl::StrCat("columns.", name, "."),
                        {{"from", text(column.from)},
                         {"transform", text(column.transform)},
                         {"digits", text(column.digits)}});
    });
  }
  return TakeFields(value, "columns.", by_name);
}

absl::Status CheckFormat(const json& header) {
  const auto format = header.find("tandem_capture");
  if (format == header.end()) {
    return InvalidArgument(
        "tandem_capture: expected the header as the first line, {\"tandem_capture\": 3, ...}, "
        "found an object without it: ",
        kImportAdvice);
  }
  if (*format == kRecordsFormat) return absl::OkStatus();
  const absl::Status status = ExpectedInHeader(
      absl::StrCat(kRecordsFormat, ", the format that this program reads"), *format);
  return InvalidArgument("tandem_capture: ", status.message());
}

}  // namespace

absl::StatusOr<RecordsHeader> ParseHeader(std::string_view text) {
  if (NestsDeeperThan(text, kMostNestedInHeader)) {
    return InvalidArgument("expected a header nested at most ", kMostNestedInHeader,
                           " deep, found a deeper one");
  }
  const std::string readable = TextForNonFinite(text);
  const json parsed = json::parse(readable, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) {
    return InvalidArgument("expected the header as a JSON object on one line, found ",
                           JsonFault(readable), ": ", kImportAdvice);
  }
  if (!parsed.is_object()) return ExpectedInHeader("the header, a JSON object", parsed);
  TANDEM_RETURN_IF_ERROR(CheckFormat(parsed));

  RecordsHeader header;
  const auto text_field = [](std::string& field) {
    return [&field](const json& value) { return GetText(value, field); };
  };
  TANDEM_RETURN_IF_ERROR(TakeFields(
      parsed, "",
      {{"tandem_capture", [](const json&) { return absl::OkStatus(); }},
       {"model", text_field(header.model)},
       {"tokenizer", text_field(header.tokenizer)},
       {"vocab_size", [&](const json& value) { return GetWhole(value, 1, header.vocab_size); }},
       {"eos_token_ids", [&](const json& value) { return GetIds(value, header.eos_token_ids); }},
       {"created_by", text_field(header.created_by)},
       {"created_at", text_field(header.created_at)},
       {"behaviour",
        [&](const json& side) { return GetSide(side, "behaviour", header.behaviour); }},
       {"proximal", [&](const json& side) { return GetSide(side, "proximal", header.proximal); }},
       {"columns", [&](const json& value) { return GetColumns(value, header.columns); }},
       {"extra", [](const json& value) {
          return value.is_object() ? absl::OkStatus() : ExpectedInHeader("an object", value);
        }}}));
  return header;
}

namespace {

ordered_json SideJson(const SideClaims& side) {
  ordered_json out = ordered_json::object();
  const auto text = [&](const char* name, const std::string& value) {
    if (!value.empty()) out[name] = value;
  };
  const auto number = [&](const char* name, const auto& value) {
    if (value) out[name] = *value;
  };
  text("engine", side.engine);
  text("engine_version", side.engine_version);
  text("dtype", side.dtype);
  text("weights", side.weights);
  text("logprobs", side.logprobs);
  text("policy", side.policy);
  number("temperature", side.temperature);
  number("top_k", side.top_k);
  number("top_p", side.top_p);
  number("min_p", side.min_p);
  number("repetition_penalty", side.repetition_penalty);
  number("frequency_penalty", side.frequency_penalty);
  number("presence_penalty", side.presence_penalty);
  number("min_tokens", side.min_tokens);
  return out;
}

}  // namespace

std::string HeaderJson(const RecordsHeader& header) {
  ordered_json out = {{"tandem_capture", kRecordsFormat}};
  const auto text = [&](const char* name, const std::string& value) {
    if (!value.empty()) out[name] = value;
  };
  text("model", header.model);
  text("tokenizer", header.tokenizer);
  if (header.vocab_size) out["vocab_size"] = *header.vocab_size;
  if (!header.eos_token_ids.empty()) out["eos_token_ids"] = header.eos_token_ids;
  text("created_by", header.created_by);
  text("created_at", header.created_at);
  for (const auto& [name, side] :
       {std::pair("behaviour", &header.behaviour), std::pair("proximal", &header.proximal)}) {
    const ordered_json claims = SideJson(*side);
    if (!claims.empty()) out[name] = claims;
  }
  for (const auto& [name, origin] : header.columns) {
    ordered_json& column = out["columns"][name] = ordered_json::object();
    if (!origin.from.empty()) column["from"] = origin.from;
    if (!origin.transform.empty()) column["transform"] = origin.transform;
    if (!origin.digits.empty()) column["digits"] = origin.digits;
  }
  return out.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace tandem::drift
