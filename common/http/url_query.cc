#include "common/http/url_query.h"

#include <algorithm>
#include <cctype>

#include "absl/strings/escaping.h"

namespace tandem {
namespace {

bool IsHex(char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; }

std::string Decoded(std::string_view text) {
  std::string spaced(text);
  std::replace(spaced.begin(), spaced.end(), '+', ' ');
  return PercentDecoded(spaced);
}

}  // namespace

std::string PercentDecoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && IsHex(text[i + 1]) && IsHex(text[i + 2])) {
      out += absl::HexStringToBytes({text.data() + i + 1, 2});
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::map<std::string, std::string> ParseQuery(std::string_view query) {
  std::map<std::string, std::string> values;
  while (!query.empty()) {
    const std::string_view one = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), one.size() + 1));
    if (one.empty()) continue;
    const size_t equals = std::min(one.find('='), one.size());
    values[Decoded(one.substr(0, equals))] = Decoded(one.substr(std::min(equals + 1, one.size())));
  }
  return values;
}

}  // namespace tandem
