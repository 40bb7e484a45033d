#include "cli/data/token_text.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/base/printable.h"
#include "common/base/status_macros.h"

namespace tandem::cli {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD: half of a character
constexpr size_t kMostOfOneCharacter = 8;                  // tokens
constexpr const char* kColours[] = {"\x1b[48;5;24m", "\x1b[48;5;58m"};
constexpr char kSpecialColour[] = "\x1b[1;48;5;90m";
constexpr char kPlain[] = "\x1b[0m";

// A background that goes over a line break would colour the rest of the line.
std::string Coloured(const std::string& text, const std::string& colour) {
  std::string out = colour;
  for (const char c : text) {
    if (c == '\n') {
      absl::StrAppend(&out, kPlain, "\n", colour);
    } else {
      out += c;
    }
  }
  return out + kPlain;
}

}  // namespace

absl::StatusOr<TokenText> ShowTokens(std::span<const int32_t> ids, const Tokenizer& tokenizer,
                                     bool in_colour) {
  TokenText shown;
  size_t colour = 0;
  for (size_t begin = 0; begin < ids.size();) {
    size_t count = 1;
    TANDEM_ASSIGN_OR_RETURN(std::string text, tokenizer.Decode(ids.subspan(begin, 1), false));
    while (text.find(kReplacement) != std::string::npos && begin + count < ids.size() &&
           count < kMostOfOneCharacter) {
      TANDEM_ASSIGN_OR_RETURN(text, tokenizer.Decode(ids.subspan(begin, ++count), false));
    }
    TANDEM_ASSIGN_OR_RETURN(const std::string ordinary,
                            tokenizer.Decode(ids.subspan(begin, count), true));
    const bool is_special = count == 1 && ordinary.empty() && !text.empty();
    if (is_special) ++shown.special[text];
    const std::string printable = PrintableLines(text);
    if (!in_colour) {
      shown.text += printable;
    } else if (is_special) {
      shown.text += Coloured(printable, kSpecialColour);
    } else {
      shown.text += Coloured(printable, kColours[colour]);
      colour = 1 - colour;
    }
    begin += count;
  }
  return shown;
}

}  // namespace tandem::cli
