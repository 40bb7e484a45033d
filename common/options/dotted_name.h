// Dotted knob names: "trainer.push.rounding" is knob "rounding" of section "trainer.push". Pure.
#ifndef TANDEM_COMMON_OPTIONS_DOTTED_NAME_H_
#define TANDEM_COMMON_OPTIONS_DOTTED_NAME_H_

#include <string_view>

namespace tandem {

// What follows the last dot; all of a name without one.
inline std::string_view LastPart(std::string_view dotted) {
  return dotted.substr(dotted.rfind('.') + 1);  // npos + 1 is 0
}

// What precedes the last dot; empty for a name without one.
inline std::string_view SectionOf(std::string_view dotted) {
  const size_t dot = dotted.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : dotted.substr(0, dot);
}

}  // namespace tandem

#endif  // TANDEM_COMMON_OPTIONS_DOTTED_NAME_H_
