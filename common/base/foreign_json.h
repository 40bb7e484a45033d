// JSON that others wrote, and that is not always JSON.
#pragma once

#include <string>
#include <string_view>

namespace tandem {

// "not JSON at byte 14", and what to write instead where the text has a number that JSON has not
// (NaN and Infinity of Python's json.dumps, or one beyond a double). "JSON" if it is.
std::string JsonFault(std::string_view text);

// `text` with null in place of NaN, Infinity, -Infinity and numbers beyond a double, but not within
// strings. So one such number does not make the rest of a document unreadable.
std::string NullForNonFinite(std::string_view text);

// The same with the texts "NaN", "Infinity" and "-Infinity", for a reader that tells a number that
// is not finite from one that is missing.
std::string TextForNonFinite(std::string_view text);

}  // namespace tandem
