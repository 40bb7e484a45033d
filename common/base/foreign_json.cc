#include "common/base/foreign_json.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

// How many bytes of `text`, from its start, are a number that is not finite.
size_t NonFiniteLength(std::string_view text) {
  for (const std::string_view name : {"NaN", "Infinity", "-Infinity"}) {
    if (text.starts_with(name)) return name.size();
  }
  const size_t length = std::min(text.find_first_not_of("+-.0123456789eE"), text.size());
  const bool is_infinite =
      std::isinf(std::strtod(std::string(text.substr(0, length)).c_str(), nullptr));
  return length > 0 && is_infinite ? length : 0;
}

bool BeginsANumber(char c) { return c == 'N' || c == 'I' || c == '-' || (c >= '0' && c <= '9'); }

// `text` with replacement(number) in place of every number that is not finite, but not within strings.
template <typename Replacement>
std::string ReplaceNonFinite(std::string_view text, const Replacement& replacement) {
  std::string out;
  bool in_string = false, in_number = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      out += c;
      if (c == '\\' && i + 1 < text.size()) out += text[++i];
      if (c == '"') in_string = false;
      continue;
    }
    const size_t length = !in_number && BeginsANumber(c) ? NonFiniteLength(text.substr(i)) : 0;
    if (length > 0) {
      out += replacement(text.substr(i, length));
      i += length - 1;
      continue;
    }
    in_number = BeginsANumber(c) || (in_number && (c == '.' || c == '+' || c == 'e' || c == 'E'));
    in_string = c == '"';
    out += c;
  }
  return out;
}

}  // namespace

std::string JsonFault(std::string_view text) {
  try {
    const auto parsed = nlohmann::json::parse(text);
    if (!parsed.is_discarded()) return "JSON";
  } catch (const nlohmann::json::out_of_range&) {
    return "not JSON: a number is too large for a double";
  } catch (const nlohmann::json::parse_error& error) {
    const std::string at = absl::StrCat("not JSON at byte ", error.byte);
    // The parser stops at the character that fits no value, one or a few behind the first.
    const size_t first = text.find_last_of(":[, ", error.byte == 0 ? 0 : error.byte - 1);
    const std::string_view value = text.substr(first == std::string_view::npos ? 0 : first + 1);
    if (NonFiniteLength(value) > 0) {
      return absl::StrCat(at, ": NaN and Infinity are no numbers of JSON; leave the field out");
    }
    if (std::string_view(error.what()).find("ill-formed UTF-8") != std::string_view::npos) {
      return absl::StrCat(at, ": the text is not UTF-8 there; convert it to UTF-8");
    }
    return at;
  }
  return "not JSON";
}

std::string NullForNonFinite(std::string_view text) {
  return ReplaceNonFinite(text, [](std::string_view) { return "null"; });
}

std::string TextForNonFinite(std::string_view text) {
  return ReplaceNonFinite(text, [](std::string_view number) {
    if (number == "NaN") return "\"NaN\"";
    return number.starts_with('-') ? "\"-Infinity\"" : "\"Infinity\"";
  });
}

}  // namespace tandem
