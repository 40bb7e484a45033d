#include "rollout_server/http/json_fields.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "common/base/foreign_json.h"
#include "common/base/json.h"
#include "common/base/status_macros.h"

namespace tandem::rollout {
namespace {

constexpr int kMostLevels = 64;
constexpr size_t kShownBytes = 60;
constexpr char kParamKey[] = "tandem-http-param";

// A value as a message shows it.
std::string Shown(const Json& value) {
  std::string text = JsonText(value);
  if (text.size() <= kShownBytes) return text;
  text.resize(kShownBytes);
  return text + "...";
}

bool IsInteger(const Json& value) {
  if (value.is_number_integer()) return true;
  return value.is_number_float() && std::trunc(value.get<double>()) == value.get<double>() &&
         std::abs(value.get<double>()) < 9e15;
}

// An integer beyond int64 becomes the largest, which no range here reaches.
int64_t IntegerOf(const Json& value) {
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{1} << 62) {
    return std::numeric_limits<int64_t>::max();
  }
  return value.is_number_float() ? static_cast<int64_t>(value.get<double>()) : value.get<int64_t>();
}

// A number that a caller wrote as a text, "3", is taken for the number, as vLLM does: command lines
// of clients pass options on as texts.
const Json& NumberIn(const Json& value, Json* parsed) {
  if (!value.is_string()) return value;
  *parsed = Json::parse(value.get_ref<const std::string&>(), nullptr, /*allow_exceptions=*/false);
  return parsed->is_number() ? *parsed : value;
}

}  // namespace

std::string JsonText(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<Json> ParseBody(const std::string& body) {
  if (NestsDeeperThan(body, kMostLevels)) {
    return InvalidArgument("the body nests deeper than ", kMostLevels, " levels");
  }
  Json parsed = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) {
    return InvalidArgument("the body is ", body.empty() ? "empty" : JsonFault(body),
                           "; want a JSON object");
  }
  if (!parsed.is_object()) return InvalidArgument("the body is no JSON object: ", Shown(parsed));
  return parsed;
}

absl::Status AboutField(const std::string& field, absl::Status error) {
  if (!error.ok()) error.SetPayload(kParamKey, absl::Cord(field));
  return error;
}

absl::Status BadField(const std::string& field, const std::string& message) {
  return AboutField(field, InvalidArgument(message));
}

std::string ParamOf(const absl::Status& status) {
  const auto param = status.GetPayload(kParamKey);
  return param ? std::string(*param) : "";
}

const Json* JsonFields::Find(const std::string& name) {
  asked_.insert(name);
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void JsonFields::Fail(const std::string& name, const std::string& message) {
  status_.Update(BadField(prefix_ + name, message));
}

void JsonFields::Wrong(const std::string& name, const Json& value, const std::string& want) {
  Fail(name, absl::StrCat(prefix_, name, " is ", Shown(value), ", want ", want));
}

std::optional<double> JsonFields::Number(const std::string& name) {
  const Json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  Json parsed;
  const Json& number = NumberIn(*value, &parsed);
  if (number.is_number()) return number.get<double>();
  Wrong(name, *value, "a number");
  return std::nullopt;
}

std::optional<int64_t> JsonFields::Integer(const std::string& name, int64_t least, int64_t most) {
  const Json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  Json parsed;
  const Json& number = NumberIn(*value, &parsed);
  if (IsInteger(number) && IntegerOf(number) >= least && IntegerOf(number) <= most) {
    return IntegerOf(number);
  }
  Wrong(name, *value, absl::StrCat("an integer from ", least, " to ", most));
  return std::nullopt;
}

std::optional<bool> JsonFields::Flag(const std::string& name) {
  const Json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  Wrong(name, *value, "true or false");
  return std::nullopt;
}

std::optional<std::string> JsonFields::Text(const std::string& name) {
  const Json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  Wrong(name, *value, "a text");
  return std::nullopt;
}

std::optional<std::vector<int32_t>> JsonFields::Ids(const std::string& name, int64_t least,
                                                    int64_t most) {
  const Json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) {
    Wrong(name, *value, "an array of token ids");
    return std::nullopt;
  }
  std::vector<int32_t> ids;
  ids.reserve(value->size());
  for (size_t i = 0; i < value->size(); ++i) {
    const Json& one = (*value)[i];
    if (!IsInteger(one) || IntegerOf(one) < least || IntegerOf(one) > most) {
      Wrong(absl::StrCat(name, "[", i, "]"), one,
            absl::StrCat("a token id from ", least, " to ", most));
      return std::nullopt;
    }
    ids.push_back(static_cast<int32_t>(IntegerOf(one)));
  }
  return ids;
}

void JsonFields::Unsupported(const std::string& name,
                             const std::function<bool(const Json&)>& is_neutral,
                             std::string_view why) {
  const Json* const value = Find(name);
  if (value == nullptr || is_neutral(*value)) return;
  Fail(name, absl::StrCat(prefix_, name, " is ", Shown(*value), ": it is not supported here",
                          why.empty() ? "" : ", since ", std::string(why)));
}

void JsonFields::Ignore(std::initializer_list<const char*> names) {
  asked_.insert(names.begin(), names.end());
}

std::vector<std::string> JsonFields::Unknown() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : object_.items()) {
    if (!asked_.contains(name)) names.push_back(name);
  }
  return names;
}

}  // namespace tandem::rollout
