#include "trainer/written_number.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace tandem::trainer {
namespace {

constexpr double kDecimalTolerance = 1e-9, kFractionTolerance = 1e-6;

constexpr std::array<std::string_view, 5> kThousands = {",", "{,}", "\u00a0", "\u202f", "\u2009"};
constexpr std::array<std::string_view, 3> kMinus = {"-", "\u2212", "\u2013"};
constexpr std::array<std::string_view, 6> kCurrency = {"\\$",    "$",      "\u20ac",
                                                       "\u00a3", "\u00a5", "\u20b9"};
constexpr std::array<std::string_view, 6> kTimes = {"\u00d7", "\\times", "\\cdot",
                                                    "\u00b7", "x",       "*"};
constexpr std::array<std::string_view, 4> kFractions = {"\\frac", "\\dfrac", "\\tfrac", "\\cfrac"};

// Reads forwards. A read that fails leaves the place as it was.
class Reader {
 public:
  Reader(std::string_view text, size_t at) : text_(text), at_(at) {}

  size_t at() const { return at_; }
  char peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool digit(size_t ahead = 0) const { return absl::ascii_isdigit(peek(ahead)); }
  bool Take(std::string_view what) {
    if (!text_.substr(at_).starts_with(what)) return false;
    at_ += what.size();
    return true;
  }
  template <typename List>
  bool TakeAny(const List& list) {
    return std::ranges::any_of(list, [this](std::string_view what) { return Take(what); });
  }
  void SkipSpaces() {
    while (peek() == ' ') ++at_;
  }
  std::string TakeDigits() {
    std::string digits;
    while (digit()) digits.push_back(text_[at_++]);
    return digits;
  }

 private:
  std::string_view text_;
  size_t at_;
};

struct Decimal {
  std::string digits;  // without separators
  int64_t exponent = 0;
  bool plain = true;  // neither decimals nor an exponent
};

// Three digits after a separator, and no fourth.
bool TakeThousands(Reader& reader, std::string& digits) {
  Reader ahead = reader;
  if (!ahead.TakeAny(kThousands)) return false;
  const std::string group = ahead.TakeDigits();
  if (group.size() != 3) return false;
  digits += group;
  reader = ahead;
  return true;
}

bool TakePowerOfTen(Reader& reader, int64_t& exponent) {
  Reader ahead = reader;
  bool negative = false;
  bool braces = false;
  if (ahead.Take("e") || ahead.Take("E")) {
    negative = ahead.TakeAny(kMinus);
    if (!negative) ahead.Take("+");
  } else {
    ahead.SkipSpaces();
    if (!ahead.TakeAny(kTimes)) return false;
    ahead.SkipSpaces();
    if (!ahead.Take("10^")) return false;
    braces = ahead.Take("{");
    negative = ahead.TakeAny(kMinus);
  }
  const std::string digits = ahead.TakeDigits();
  // "2e5x" and "0x1e4f" are no numbers with an exponent, and one of more digits has no value.
  if (digits.empty() || digits.size() > 3 || absl::ascii_isalnum(ahead.peek())) return false;
  if (braces && !ahead.Take("}")) return false;
  int64_t power = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), power);
  exponent += negative ? -power : power;
  reader = ahead;
  return true;
}

// At a digit, or at a period before one.
Decimal TakeDecimal(Reader& reader) {
  Decimal number;
  number.digits = reader.TakeDigits();
  if (!number.digits.empty() && number.digits.size() <= 3 && number.digits[0] != '0') {
    while (TakeThousands(reader, number.digits)) {
    }
  }
  if (reader.peek() == '.' && reader.digit(1)) {
    reader.Take(".");
    const std::string decimals = reader.TakeDigits();
    number.digits += decimals;
    number.exponent = -static_cast<int64_t>(decimals.size());
    number.plain = false;
  }
  if (TakePowerOfTen(reader, number.exponent)) number.plain = false;
  return number;
}

WrittenNumber FromDecimal(const Decimal& number, bool negative) {
  std::string digits = number.digits;
  int64_t exponent = number.exponent;
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  while (!digits.empty() && digits.back() == '0') {
    digits.pop_back();
    ++exponent;
  }
  if (digits.empty()) return {.decimal = "0e0", .is_integer = true};
  WrittenNumber written;
  written.decimal = absl::StrCat(negative ? "-" : "", digits, "e", exponent);
  written.value = std::strtod(written.decimal.c_str(), nullptr);
  written.is_integer = exponent >= 0;
  return written;
}

double ValueOf(const Decimal& number) { return FromDecimal(number, false).value; }

// The rest of "3/4", after its 3: one slash, digits, and nothing that makes it a date or a path.
std::optional<double> TakeDenominator(Reader& reader) {
  Reader ahead = reader;
  if (!ahead.Take("/") || !ahead.digit()) return std::nullopt;
  const Decimal denominator = TakeDecimal(ahead);
  const double value = ValueOf(denominator);
  if (!denominator.plain || value == 0 || ahead.peek() == '/' ||
      absl::ascii_isalnum(ahead.peek())) {
    return std::nullopt;
  }
  reader = ahead;
  return value;
}

// \frac{3}{4}, at its backslash.
std::optional<double> TakeLatexFraction(Reader& reader) {
  Reader ahead = reader;
  if (!ahead.TakeAny(kFractions)) return std::nullopt;
  double parts[2];
  for (double& part : parts) {
    if (!ahead.Take("{") || !ahead.digit()) return std::nullopt;
    part = ValueOf(TakeDecimal(ahead));
    if (!ahead.Take("}")) return std::nullopt;
  }
  if (parts[1] == 0) return std::nullopt;
  reader = ahead;
  return parts[0] / parts[1];
}

// Takes one of `list` off the end.
template <typename List>
bool TakeOffEnd(std::string_view& before, const List& list) {
  for (const std::string_view what : list) {
    if (!before.ends_with(what)) continue;
    before.remove_suffix(what.size());
    return true;
  }
  return false;
}

// A minus right before the number is its sign unless something stands before it from which the
// number could be taken away ("7-3", "x-3", "(2)-3").
bool IsNegative(std::string_view before) {
  TakeOffEnd(before, kCurrency);
  if (!TakeOffEnd(before, kMinus)) return false;
  if (before.empty()) return true;
  const char last = before.back();
  return !absl::ascii_isalnum(last) && last != ')' && last != ']' && last != '}' && last != '%';
}

bool StartsDecimals(std::string_view text, size_t i) {
  if (text[i] != '.' || i + 1 >= text.size() || !absl::ascii_isdigit(text[i + 1])) return false;
  return i == 0 || (!absl::ascii_isalnum(text[i - 1]) && text[i - 1] != '.');
}

bool TakePercent(Reader& reader) {
  Reader ahead = reader;
  ahead.Take(" ");
  if (!ahead.Take("%") && !ahead.Take("\\%")) return false;
  reader = ahead;
  return true;
}

// The number that begins at `reader`, if one does.
std::optional<WrittenNumber> TakeNumber(std::string_view text, Reader& reader) {
  const std::string_view before = text.substr(0, reader.at());
  const bool negative = IsNegative(before);
  const auto fraction = [negative](double value) {
    return WrittenNumber{.value = negative ? -value : value};
  };
  std::optional<WrittenNumber> number;
  if (reader.peek() == '\\') {
    const std::optional<double> value = TakeLatexFraction(reader);
    if (value.has_value()) number = fraction(*value);
  } else if (reader.digit() || StartsDecimals(text, reader.at())) {
    const Decimal decimal = TakeDecimal(reader);
    number = FromDecimal(decimal, negative);
    if (decimal.plain && !before.ends_with("/")) {
      const std::optional<double> denominator = TakeDenominator(reader);
      if (denominator.has_value()) number = fraction(ValueOf(decimal) / *denominator);
    }
  }
  if (number.has_value()) number->percent = TakePercent(reader);
  return number;
}

// "1 1/2" is one and a half: a fraction below 1 that follows an integer and a space.
bool IsMixed(const WrittenNumber& whole, const WrittenNumber& fraction, std::string_view between) {
  return between == " " && whole.is_integer && !whole.percent && fraction.decimal.empty() &&
         fraction.value > 0 && fraction.value < 1;
}

// Infinite values, of digits beyond the range of a double, are the same as nothing: otherwise a
// completion of digits alone would be the answer to every question.
bool SameValue(double a, double b, double tolerance) {
  if (!std::isfinite(a) || !std::isfinite(b)) return false;
  return std::abs(a - b) <= tolerance * std::max(std::abs(a), std::abs(b));
}

}  // namespace

std::vector<WrittenNumber> NumbersIn(std::string_view text) {
  std::vector<WrittenNumber> numbers;
  size_t end = 0;  // of the number before
  for (size_t i = 0; i < text.size();) {
    Reader reader(text, i);
    std::optional<WrittenNumber> number = TakeNumber(text, reader);
    if (!number.has_value()) {
      ++i;
      continue;
    }
    if (!numbers.empty() && IsMixed(numbers.back(), *number, text.substr(end, i - end))) {
      const bool negative = numbers.back().decimal.starts_with("-");
      number->value = numbers.back().value + (negative ? -number->value : number->value);
      numbers.back() = *std::move(number);
    } else {
      numbers.push_back(*std::move(number));
    }
    i = end = reader.at();
  }
  return numbers;
}

bool SameNumber(const WrittenNumber& a, const WrittenNumber& b) {
  const bool decimals = !a.decimal.empty() && !b.decimal.empty();
  const double tolerance = decimals ? kDecimalTolerance : kFractionTolerance;
  if (a.percent != b.percent &&
      SameValue(a.value / (a.percent ? 100 : 1), b.value / (b.percent ? 100 : 1), tolerance)) {
    return true;
  }
  if (decimals && a.is_integer && b.is_integer) return a.decimal == b.decimal;
  return SameValue(a.value, b.value, tolerance);
}

}  // namespace tandem::trainer
