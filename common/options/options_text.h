// Texts of OptionBinder: values as YAML, ranges in words, and the nearest name to a mistyped one.
#ifndef TANDEM_COMMON_OPTIONS_OPTIONS_TEXT_H_
#define TANDEM_COMMON_OPTIONS_OPTIONS_TEXT_H_

#include <string>
#include <string_view>
#include <vector>

#include "common/options/options.h"

namespace tandem {

// The parts one after the other. (Debian's absl::StrCat does not take std::string_view.)
template <typename... Parts>
std::string Concat(const Parts&... parts) {
  std::string whole;
  (whole.append(std::string_view(parts)), ...);
  return whole;
}

// The shortest decimal that reads back to the same double; infinities as YAML spells them.
std::string NumberText(double number);

// As YAML reads it back to the same bytes: plain where that is safe, else in double quotes.
std::string QuotedText(std::string_view text);

// ">= 1", "> 0", "<= 5", "in [0, 1]", "in (0, 1]"; empty when everything is allowed.
std::string RangeText(const NumberRange& range);

}  // namespace tandem

#endif  // TANDEM_COMMON_OPTIONS_OPTIONS_TEXT_H_
