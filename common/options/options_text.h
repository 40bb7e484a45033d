// Texts for OptionBinder: values as YAML, and ranges in words.
#pragma once

#include <string>
#include <string_view>

#include "common/options/options.h"

namespace tandem {

// Concatenates the parts. (Debian's absl::StrCat does not accept std::string_view.)
template <typename... Parts>
std::string Concat(const Parts&... parts) {
  std::string whole;
  (whole.append(std::string_view(parts)), ...);
  return whole;
}

// The shortest decimal that reads back to the same double; infinities as YAML spells them.
std::string NumberText(double number);

// The text such that YAML reads it back to the same bytes: plain where that is safe, else in double
// quotes.
std::string QuotedText(std::string_view text);

// ">= 1", "> 0", "<= 5", "in [0, 1]", "in (0, 1]"; empty if everything is allowed.
std::string RangeText(const NumberRange& range);

}  // namespace tandem
