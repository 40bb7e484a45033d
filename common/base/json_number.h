// JsonNumber: a float as JSON files and logs of the project carry it: nine significant digits
// (enough to give a float32 back exactly); NaN and infinities, which JSON lacks, are null.
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
