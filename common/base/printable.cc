#include "common/base/printable.h"

#include <array>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tandem {
namespace {

struct Decoded {
  uint32_t code = 0;
  size_t size = 0;  // bytes; 0: not valid UTF-8
};

Decoded DecodeFirst(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {lead, 1};
  const size_t size = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || size > text.size()) return {};
  uint32_t code = lead & (0xFFu >> (size + 1));
  for (size_t i = 1; i < size; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if ((byte & 0xC0) != 0x80) return {};
    code = (code << 6) | (byte & 0x3Fu);
  }
  // The smallest code point of each size. A longer encoding of the same character could slip past a
  // filter.
  constexpr std::array<uint32_t, 5> kLeast = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code >= 0xD800 && code <= 0xDFFF;
  if (code < kLeast[size] || code > 0x10FFFF || is_surrogate) return {};
  return {code, size};
}

bool ActsOnATerminal(uint32_t code) {
  if (code < 0x20 || (code >= 0x7F && code < 0xA0)) return true;  // C0, DEL, C1
  return code == 0x061C || code == 0x200E || code == 0x200F ||    // marks of direction
         (code >= 0x2028 && code <= 0x202E) ||                    // separators, embeddings
         (code >= 0x2066 && code <= 0x2069);                      // isolates
}

void AppendWrittenOut(uint32_t code, std::string* out) {
  switch (code) {
    case '\n':
      return absl::StrAppend(out, "\\n");
    case '\r':
      return absl::StrAppend(out, "\\r");
    case '\t':
      return absl::StrAppend(out, "\\t");
    default:
      absl::StrAppendFormat(out, "\\u%04x", code);
  }
}

}  // namespace

std::string Printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Decoded first = DecodeFirst(text);
    if (first.size == 0) {
      out += "\xEF\xBF\xBD";
      text.remove_prefix(1);
      continue;
    }
    if (ActsOnATerminal(first.code)) {
      AppendWrittenOut(first.code, &out);
    } else {
      out += text.substr(0, first.size);
    }
    text.remove_prefix(first.size);
  }
  return out;
}

std::string PrintableLines(std::string_view text) {
  std::string out;
  for (size_t end; (end = text.find('\n')) != std::string_view::npos;) {
    absl::StrAppend(&out, Printable(text.substr(0, end)), "\n");
    text.remove_prefix(end + 1);
  }
  return out + Printable(text);
}

}  // namespace tandem
