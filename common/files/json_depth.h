// NestsDeeperThan: guards nlohmann's recursive parser, which would overflow the stack on a file of
// nothing but brackets. Call it before parsing untrusted text. Pure.
#ifndef TANDEM_COMMON_FILES_JSON_DEPTH_H_
#define TANDEM_COMMON_FILES_JSON_DEPTH_H_

#include <cstddef>
#include <string_view>

namespace tandem {

// True if more than `limit` arrays and objects are nested. `json` may be any text.
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

#endif  // TANDEM_COMMON_FILES_JSON_DEPTH_H_
