// The nearest name to a mistyped one, for error messages: knobs, choices, flags, commands. Pure.
#ifndef TANDEM_COMMON_BASE_NEAREST_NAME_H_
#define TANDEM_COMMON_BASE_NEAREST_NAME_H_

#include <string>
#include <string_view>
#include <vector>

namespace tandem {

// The candidate with the least edit distance, the first of equals. Empty without candidates.
std::string Nearest(std::string_view name, const std::vector<std::string>& candidates);

// As Nearest, and empty when no candidate is within half the length of `name`.
std::string NearestIfClose(std::string_view name, const std::vector<std::string>& candidates);

// As Nearest, for dotted names: the right last part under another section is near.
std::string NearestDotted(std::string_view dotted, const std::vector<std::string>& candidates);

}  // namespace tandem

#endif  // TANDEM_COMMON_BASE_NEAREST_NAME_H_
