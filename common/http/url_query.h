// The query of a URL: "mode=keep&name=a%20b" as names and values.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace tandem {

// With each percent sign and two hex digits as their byte. Pure.
std::string PercentDecoded(std::string_view text);

// Percent signs and plus signs are decoded; a percent sign without two hex digits stays as it is. Of
// a repeated name the last value counts. Pure.
std::map<std::string, std::string> ParseQuery(std::string_view query);

}  // namespace tandem
