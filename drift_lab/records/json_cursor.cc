#include "drift_lab/records/json_cursor.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/base/foreign_json.h"
#include "common/base/json.h"
#include "common/base/printable.h"

namespace tandem::drift {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// True if a word or a number that ends before `c` is whole.
bool EndsAWord(char c) { return !IsDigit(c) && !std::isalpha(static_cast<unsigned char>(c)); }

// The number at the start of `text`, as far as JSON's grammar goes. Empty if there is none.
std::string_view NumberAt(std::string_view text) {
  size_t i = text.starts_with('-') ? 1 : 0;
  const auto digits = [&] {
    const size_t first = i;
    while (i < text.size() && IsDigit(text[i])) ++i;
    return i - first;
  };
  const bool begins_with_zero = i < text.size() && text[i] == '0';
  const size_t num_digits = digits();
  if (num_digits == 0 || (begins_with_zero && num_digits > 1)) return {};
  if (i < text.size() && text[i] == '.') {
    ++i;
    if (digits() == 0) return {};
  }
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    if (i < text.size() && (text[i] == '+' || text[i] == '-')) ++i;
    if (digits() == 0) return {};
  }
  if (i < text.size() && !EndsAWord(text[i])) return {};
  return text.substr(0, i);
}

}  // namespace

void JsonCursor::SkipSpace() {
  while (at_ < text_.size() &&
         (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t')) {
    ++at_;
  }
}

bool JsonCursor::AtEnd() {
  SkipSpace();
  return at_ == text_.size();
}

bool JsonCursor::Take(char c) {
  SkipSpace();
  if (at_ == text_.size() || text_[at_] != c) return false;
  ++at_;
  return true;
}

bool JsonCursor::TakeExact(std::string_view word) {
  if (!rest().starts_with(word)) return false;
  const size_t end = at_ + word.size();
  if (end < text_.size() && !EndsAWord(text_[end])) return false;
  at_ = end;
  return true;
}

bool JsonCursor::TakeWord(std::string_view word) {
  SkipSpace();
  return TakeExact(word);
}

size_t JsonCursor::EndOfString() const {
  for (size_t i = at_ + 1; i < text_.size(); ++i) {
    if (text_[i] == '\\') {
      ++i;
    } else if (text_[i] == '"') {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

bool JsonCursor::TakeText(std::string& text) {
  SkipSpace();
  if (!rest().starts_with('"')) return false;
  const size_t end = EndOfString();
  if (end == std::string_view::npos) return false;
  const std::string_view quoted = text_.substr(at_, end - at_);
  const bool is_plain =
      std::ranges::all_of(quoted, [](char c) { return c >= ' ' && c < 0x7f && c != '\\'; });
  if (is_plain) {
    text = quoted.substr(1, quoted.size() - 2);
  } else {  // escapes, and bytes that may not be UTF-8
    const auto parsed = nlohmann::json::parse(quoted, nullptr, /*allow_exceptions=*/false);
    if (!parsed.is_string()) return false;
    text = parsed.get<std::string>();
  }
  at_ = end;
  return true;
}

template <typename T>
bool JsonCursor::TakeWhole(T& value) {
  SkipSpace();
  const std::string_view number = NumberAt(rest());
  if (number.empty()) return false;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (error != std::errc()) return false;
  if (end != number.data() + number.size()) {  // 3.0 or 3e2
    double real = 0;
    const auto [last, fault] = std::from_chars(number.data(), number.data() + number.size(), real);
    constexpr double kLimit = 9007199254740992;  // 2^53: whole numbers up to here are exact
    if (fault != std::errc() || real != std::floor(real) || std::abs(real) > kLimit ||
        real < static_cast<double>(std::numeric_limits<T>::min()) ||
        real > static_cast<double>(std::numeric_limits<T>::max())) {
      return false;
    }
    value = static_cast<T>(real);
  }
  at_ += number.size();
  return true;
}

bool JsonCursor::TakeInt(int64_t& value) { return TakeWhole(value); }
bool JsonCursor::TakeInt(int32_t& value) { return TakeWhole(value); }

template <typename T>
bool JsonCursor::TakeNonFinite(T& value) {
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  if (TakeExact("NaN") || TakeExact("\"NaN\"")) {
    value = std::numeric_limits<T>::quiet_NaN();
    return true;
  }
  if (TakeExact("Infinity") || TakeExact("\"Infinity\"")) {
    value = kInfinity;
    return true;
  }
  if (TakeExact("-Infinity") || TakeExact("\"-Infinity\"")) {
    value = -kInfinity;
    return true;
  }
  return false;
}

template <typename T>
bool JsonCursor::TakeNumber(T& value) {
  SkipSpace();
  const std::string_view number = NumberAt(rest());
  if (number.empty()) return TakeNonFinite(value);
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (error == std::errc::result_out_of_range) {  // too large, or too small
    const double real = std::strtod(std::string(number).c_str(), nullptr);
    value = static_cast<T>(real);
  } else if (error != std::errc()) {
    return false;
  }
  at_ += number.size();
  return true;
}

bool JsonCursor::TakeFloat(float& value) { return TakeNumber(value); }
bool JsonCursor::TakeFloat(double& value) { return TakeNumber(value); }

size_t JsonCursor::EndOfObject() const {
  int64_t depth = 0;
  bool in_string = false;
  for (size_t i = at_; i < text_.size(); ++i) {
    const char c = text_[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if ((c == '}' || c == ']') && --depth == 0) {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

bool JsonCursor::TakeObject() {
  SkipSpace();
  if (!rest().starts_with('{')) return false;
  const size_t end = EndOfObject();
  if (end == std::string_view::npos) return false;
  const std::string_view object = text_.substr(at_, end - at_);
  if (NestsDeeperThan(object, kMostNested)) return false;
  if (!nlohmann::json::accept(object) && !nlohmann::json::accept(NullForNonFinite(object))) {
    return false;
  }
  at_ = end;
  return true;
}

size_t JsonCursor::byte() {
  SkipSpace();
  return at_ + 1;
}

std::string JsonCursor::Found() {
  constexpr size_t kMost = 40;
  if (AtEnd()) return "the end (is the file cut short?)";
  const bool is_nested = rest().starts_with('[') || rest().starts_with('{');
  size_t length = rest().size();
  if (rest().starts_with('"')) {
    length = std::min(EndOfString(), text_.size()) - at_;
  } else if (!is_nested) {
    // At least one character, so that a stray bracket is shown.
    length = std::max<size_t>(1, std::min(rest().find_first_of(",]} \t\r\n"), rest().size()));
  }
  const std::string shown = Printable(rest().substr(0, std::min(length, kMost)));
  return length > kMost ? absl::StrCat(shown, "...") : shown;
}

}  // namespace tandem::drift
