#include "drift_lab/importers/item_fields.h"

#include <cmath>
#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "drift_lab/records/records_builder.h"
#include "nlohmann/json.hpp"

namespace tandem::drift {
namespace {

using nlohmann::json;

const json* MemberOrElement(const json& value, std::string_view name) {
  if (value.is_object()) {
    const auto found = value.find(std::string(name));
    return found == value.end() ? nullptr : &*found;
  }
  size_t index = 0;
  if (!value.is_array() || !absl::SimpleAtoi(absl::string_view(name.data(), name.size()), &index) ||
      index >= value.size()) {
    return nullptr;
  }
  return &value[index];
}

// Nothing if `value` is no number of 32 bits and none of the texts that stand for one.
std::optional<float> FloatOf(const json& value) {
  if (value.is_number()) {
    const auto number = value.get<double>();
    if (std::abs(number) > double{std::numeric_limits<float>::max()}) return std::nullopt;
    return static_cast<float>(number);
  }
  if (value.is_null()) return kNoValue;
  if (!value.is_string()) return std::nullopt;
  const auto& text = value.get_ref<const std::string&>();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  if (text == "NaN") return kGivenNan;
  if (text == "Infinity") return kInfinity;
  if (text == "-Infinity") return -kInfinity;
  return std::nullopt;
}

absl::Status WrongElement(std::string_view field, std::string_view expected, size_t element,
                          const json& found) {
  return InvalidArgument(field, ": expected ", expected, ", found ", Described(found),
                         " at element ", element);
}

absl::Status CheckList(const json& value, std::string_view field, std::string_view expected) {
  if (value.is_array()) return absl::OkStatus();
  return InvalidArgument(field, ": expected ", expected, ", found ", Described(value));
}

}  // namespace

const json* FindField(const json& item, std::string_view path) {
  const json* at = &item;
  while (true) {
    // A member whose name has dots is found as it is.
    if (const json* whole = MemberOrElement(*at, path); whole != nullptr) {
      return whole->is_null() ? nullptr : whole;
    }
    const size_t dot = path.find('.');
    if (dot == std::string_view::npos) return nullptr;
    at = MemberOrElement(*at, path.substr(0, dot));
    if (at == nullptr) return nullptr;
    path.remove_prefix(dot + 1);
  }
}

std::string Described(const json& value) {
  switch (value.type()) {
    case json::value_t::null:
      return "null";
    case json::value_t::boolean:
      return value.get<bool>() ? "true" : "false";
    case json::value_t::string: {
      const auto& text = value.get_ref<const std::string&>();
      return absl::StrCat("the text \"", text.substr(0, 40), text.size() > 40 ? "..." : "", "\"");
    }
    case json::value_t::array:
      return absl::StrCat("a list of ", value.size());
    case json::value_t::object:
      return "an object";
    default:
      return absl::StrCat("the number ", value.dump());
  }
}

std::optional<int32_t> IdIn(const json& value) {
  constexpr int64_t kLeast = std::numeric_limits<int32_t>::min();
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (!value.is_number_integer()) return std::nullopt;
  // An unsigned number beyond 63 bits would read as a negative one.
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{kMost}) return std::nullopt;
  const auto number = value.get<int64_t>();
  if (number < kLeast || number > kMost) return std::nullopt;
  return static_cast<int32_t>(number);
}

absl::StatusOr<std::vector<int32_t>> ReadIds(const json& value, std::string_view field) {
  TANDEM_RETURN_IF_ERROR(CheckList(value, field, "a list of token ids"));
  std::vector<int32_t> ids;
  ids.reserve(value.size());
  for (size_t i = 0; i < value.size(); ++i) {
    const std::optional<int32_t> id = IdIn(value[i]);
    if (!id) return WrongElement(field, "token ids", i, value[i]);
    ids.push_back(*id);
  }
  return ids;
}

absl::StatusOr<std::vector<uint8_t>> ReadMask(const json& value, std::string_view field) {
  TANDEM_RETURN_IF_ERROR(CheckList(value, field, "a list of 0 and 1"));
  std::vector<uint8_t> mask;
  mask.reserve(value.size());
  for (size_t i = 0; i < value.size(); ++i) {
    const json& bit = value[i];
    const double number = bit.is_boolean()  ? (bit.get<bool>() ? 1 : 0)
                          : bit.is_number() ? bit.get<double>()
                                            : -1;
    if (number != 0 && number != 1) return WrongElement(field, "0 or 1", i, bit);
    mask.push_back(static_cast<uint8_t>(number));
  }
  return mask;
}

absl::StatusOr<std::vector<float>> ReadFloats(const json& value, std::string_view field) {
  TANDEM_RETURN_IF_ERROR(CheckList(value, field, "a list of numbers"));
  std::vector<float> numbers;
  numbers.reserve(value.size());
  for (size_t i = 0; i < value.size(); ++i) {
    const std::optional<float> number = FloatOf(value[i]);
    if (!number) return WrongElement(field, "numbers", i, value[i]);
    numbers.push_back(*number);
  }
  return numbers;
}

absl::StatusOr<float> ReadFloat(const json& value, std::string_view field) {
  const std::optional<float> number = FloatOf(value);
  if (!number) return InvalidArgument(field, ": expected a number, found ", Described(value));
  return *number;
}

absl::StatusOr<int64_t> ReadInt(const json& value, std::string_view field) {
  int64_t number = 0;
  const bool fits = !value.is_number_unsigned() ||
                    value.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()};
  if (value.is_number_integer() && fits) return value.get<int64_t>();
  if (value.is_string() && absl::SimpleAtoi(value.get_ref<const std::string&>(), &number)) {
    return number;
  }
  return InvalidArgument(field, ": expected a whole number, found ", Described(value));
}

absl::StatusOr<std::optional<int64_t>> IntOf(const json& item, std::string_view path) {
  const json* value = FindField(item, path);
  if (value == nullptr) return std::nullopt;
  TANDEM_ASSIGN_OR_RETURN(const int64_t number, ReadInt(*value, path));
  return std::optional<int64_t>(number);
}

absl::StatusOr<std::optional<double>> NumberOf(const json& item, std::string_view path) {
  const json* value = FindField(item, path);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) return std::optional<double>(value->get<double>());
  TANDEM_ASSIGN_OR_RETURN(const float number, ReadFloat(*value, path));
  return std::optional<double>(number);
}

std::string TextOf(const json& item, std::string_view path) {
  const json* value = FindField(item, path);
  if (value == nullptr) return "";
  return value->is_string() ? value->get<std::string>() : value->dump();
}

absl::StatusOr<const json*> NeedField(const json& item, std::string_view path,
                                      std::string_view expected) {
  const json* value = FindField(item, path);
  if (value == nullptr) return InvalidArgument(path, ": expected ", expected, ", found nothing");
  return value;
}

std::vector<float> Placed(const std::vector<float>& values, size_t before, size_t after) {
  std::vector<float> placed(before, kNoValue);
  placed.insert(placed.end(), values.begin(), values.end());
  placed.insert(placed.end(), after, kNoValue);
  return placed;
}

}  // namespace tandem::drift
