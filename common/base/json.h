// JSON, apart from its library.
//
// JsonNumber: a number as the project's JSON files and logs print it, with nine significant digits,
// which are enough to restore a float32 exactly. JSON has no NaN and no infinity, so both are
// written as null.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>

namespace tandem {

inline std::string JsonNumber(double number) {
  if (!std::isfinite(number)) return "null";
  char text[32];
  std::snprintf(text, sizeof(text), "%.9g", number);
  return text;
}

// The same as a value of nlohmann's json or ordered_json.
template <typename Json>
Json JsonNumberAs(double number) {
  return Json::parse(JsonNumber(number));
}

// True if more than `limit` arrays and objects are nested in `json`, which may be any text. Call it
// before parsing untrusted text: nlohmann's parser is recursive, and would overflow the stack on a
// file of nothing but brackets. Pure.
inline bool NestsDeeperThan(std::string_view json, int limit) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > limit) return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

}  // namespace tandem
