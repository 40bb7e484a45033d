// Printable: makes text of unknown origin safe to print on a terminal, by escaping everything that
// would move the cursor, change colours, or hide or reorder other text. Used by the log and by
// programs that print answers of other processes. Pure.
#pragma once

#include <string>
#include <string_view>

namespace tandem {

// Returns `text` as one line. Line breaks and tabs become \n, \r and \t. Other control characters
// (C0 including ESC, DEL, C1), line separators and direction marks become \uXXXX. Bytes that are
// not valid UTF-8 become U+FFFD. Everything else is unchanged, letters of every script included.
// Inside a JSON string, the result denotes the same text.
std::string Printable(std::string_view text);

// The same for each line of `text`, so that a message of several lines keeps its line breaks.
std::string PrintableLines(std::string_view text);

// The text up to its first line break: what a library's error says before its own stack trace.
inline std::string FirstLine(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

}  // namespace tandem
