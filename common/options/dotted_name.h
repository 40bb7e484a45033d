// Dotted option names: "trainer.push.rounding" is option "rounding" of section "trainer.push".
// Pure.
#ifndef TANDEM_COMMON_OPTIONS_DOTTED_NAME_H_
#define TANDEM_COMMON_OPTIONS_DOTTED_NAME_H_

#include <string_view>

namespace tandem {

// The part after the last dot; the whole name if it has none.
inline std::string_view LastPart(std::string_view dotted) {
  return dotted.substr(dotted.rfind('.') + 1);  // npos + 1 is 0
}

// The part before the last dot; empty if the name has none.
inline std::string_view SectionOf(std::string_view dotted) {
  const size_t dot = dotted.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : dotted.substr(0, dot);
}

}  // namespace tandem

#endif  // TANDEM_COMMON_OPTIONS_DOTTED_NAME_H_
