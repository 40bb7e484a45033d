// JsonNumber: a number as the project's JSON files and logs print it, with nine significant digits,
// which are enough to restore a float32 exactly. JSON has no NaN and no infinity, so both are
// written as null.
#ifndef TANDEM_COMMON_BASE_JSON_NUMBER_H_
#define TANDEM_COMMON_BASE_JSON_NUMBER_H_

#include <cmath>
#include <cstdio>
#include <string>

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

}  // namespace tandem

#endif  // TANDEM_COMMON_BASE_JSON_NUMBER_H_
