// Text from others, made fit for a terminal: what would move the cursor, change colours, hide or
// turn around other text is written out instead. Pure. Used by the log and by what prints answers
// of other processes.
#ifndef TANDEM_COMMON_BASE_PRINTABLE_H_
#define TANDEM_COMMON_BASE_PRINTABLE_H_

#include <string>
#include <string_view>

namespace tandem {

// `text` on one line: line breaks and tabs as \n, \r, \t; other control characters (C0 with ESC,
// DEL, C1), line separators and marks of writing direction as \uXXXX; bytes that are no UTF-8 as
// U+FFFD. Everything else, letters of any script included, as it is. Inside JSON strings the result
// stands for the same text.
std::string Printable(std::string_view text);

// Each line of `text` by itself: a message of several lines stays so.
std::string PrintableLines(std::string_view text);

// The text up to its first line break: what a library's error says before its own stack trace.
inline std::string FirstLine(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

}  // namespace tandem

#endif  // TANDEM_COMMON_BASE_PRINTABLE_H_
