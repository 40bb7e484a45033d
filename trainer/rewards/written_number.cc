#include "trainer/rewards/written_number.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace tandem::trainer {
namespace {

constexpr double kDecimalTolerance = 1e-9, kFractionTolerance = 1e-6;

constexpr double kNotRead = std::numeric_limits<double>::quiet_NaN();

// In these lists the longer of two that begin alike stands first.
constexpr std::array<std::string_view, 7> kThousands = {",\\!",   ",",      "{,}",   "\\,",
                                                        "\u00a0", "\u202f", "\u2009"};
// Characters that join digits to one number in some convention.
constexpr std::array<std::string_view, 8> kJoins = {",\\!", ",", "{,}",    "\\,",
                                                    ".",    "'", "\u2019", "_"};
constexpr std::array<std::string_view, 3> kSlashes = {"/", "\u2044", "\u2215"};
constexpr std::array<std::string_view, 3> kMinus = {"-", "\u2212", "\u2013"};
constexpr std::array<std::string_view, 6> kCurrency = {"\\$",    "$",      "\u20ac",
                                                       "\u00a3", "\u00a5", "\u20b9"};
constexpr std::array<std::string_view, 6> kTimes = {"\u00d7", "\\times", "\\cdot",
                                                    "\u00b7", "x",       "*"};
constexpr std::array<std::string_view, 4> kFractions = {"\\frac", "\\dfrac", "\\tfrac", "\\cfrac"};
// Units that people square and cube without a caret: 14 m2, 9.8 m/s2.
constexpr std::array<std::string_view, 10> kUnits = {"m",  "cm", "mm", "km", "dm",
                                                     "in", "ft", "yd", "mi", "s"};
constexpr std::array<std::string_view, 10> kSuperscripts = {"\u2070", "\u00b9", "\u00b2", "\u00b3",
                                                            "\u2074", "\u2075", "\u2076", "\u2077",
                                                            "\u2078", "\u2079"};

struct VulgarFraction {
  std::string_view text;
  double over, under;
};
constexpr std::array<VulgarFraction, 18> kVulgarFractions = {{
    {"\u00bd", 1, 2},
    {"\u2153", 1, 3},
    {"\u2154", 2, 3},
    {"\u00bc", 1, 4},
    {"\u00be", 3, 4},
    {"\u2155", 1, 5},
    {"\u2156", 2, 5},
    {"\u2157", 3, 5},
    {"\u2158", 4, 5},
    {"\u2159", 1, 6},
    {"\u215a", 5, 6},
    {"\u2150", 1, 7},
    {"\u215b", 1, 8},
    {"\u215c", 3, 8},
    {"\u215d", 5, 8},
    {"\u215e", 7, 8},
    {"\u2151", 1, 9},
    {"\u2152", 1, 10},
}};

// Reads forwards. A read that fails leaves the place as it was.
class Reader {
 public:
  Reader(std::string_view text, size_t at) : text_(text), at_(at) {}

  size_t at() const { return at_; }
  std::string_view before() const { return text_.substr(0, at_); }
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
  void SkipWord() {
    while (absl::ascii_isalnum(peek())) ++at_;
  }
  // {...} with the braces inside it; nothing where it is not closed.
  bool SkipBraces() {
    int depth = 0;
    for (size_t i = at_; i < text_.size() && (i > at_ || text_[i] == '{'); ++i) {
      if (text_[i] == '{') ++depth;
      if (text_[i] != '}' || --depth > 0) continue;
      at_ = i + 1;
      return true;
    }
    return false;
  }

 private:
  std::string_view text_;
  size_t at_;
};

struct Decimal {
  std::string digits;  // without separators
  int64_t exponent = 0;
  bool plain = true;     // neither decimals nor an exponent
  bool grouped = false;  // in thousands
};

std::string TakeSuperscripts(Reader& reader) {
  std::string digits;
  for (size_t i = 0; i < kSuperscripts.size();) {
    const bool taken = reader.Take(kSuperscripts[i]);
    if (taken) digits.push_back(static_cast<char>('0' + i));
    i = taken ? 0 : i + 1;
  }
  return digits;
}

// ^3, ^{-3} or superscripts, as digits with their sign.
std::optional<std::string> TakeExponent(Reader& reader) {
  Reader ahead = reader;
  const bool caret = ahead.Take("^");
  const bool braces = caret && ahead.Take("{");
  const bool negative = caret ? ahead.TakeAny(kMinus) : ahead.Take("\u207b");
  const std::string digits = caret ? ahead.TakeDigits() : TakeSuperscripts(ahead);
  if (digits.empty() || (braces && !ahead.Take("}"))) return std::nullopt;
  reader = ahead;
  return absl::StrCat(negative ? "-" : "", digits);
}

// An exponent of more than three digits is none.
bool AddExponent(std::string_view power, int64_t& exponent) {
  if (power.size() > (power.starts_with('-') ? 4U : 3U)) return false;
  int64_t value = 0;
  std::from_chars(power.data(), power.data() + power.size(), value);
  exponent += value;
  return true;
}

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

// e3, e-3 or x 10^3. "2e5x" has none.
bool TakePowerOfTen(Reader& reader, int64_t& exponent) {
  Reader ahead = reader;
  std::optional<std::string> power;
  if (ahead.Take("e") || ahead.Take("E")) {
    const bool negative = ahead.TakeAny(kMinus);
    if (!negative) ahead.Take("+");
    const std::string digits = ahead.TakeDigits();
    if (digits.empty() || absl::ascii_isalpha(ahead.peek())) return false;
    power = absl::StrCat(negative ? "-" : "", digits);
  } else {
    ahead.SkipSpaces();
    if (!ahead.TakeAny(kTimes)) return false;
    ahead.SkipSpaces();
    if (ahead.Take("10")) power = TakeExponent(ahead);
  }
  if (!power.has_value() || !AddExponent(*power, exponent)) return false;
  reader = ahead;
  return true;
}

// 10^3, of which the 10 is taken.
bool TakePowerOfTheTen(Reader& reader, Decimal& ten) {
  Reader ahead = reader;
  const std::optional<std::string> power = TakeExponent(ahead);
  if (!power.has_value() || !AddExponent(*power, ten.exponent)) return false;
  ten.digits = "1";
  reader = ahead;
  return true;
}

// At a digit, or at a period before one.
Decimal TakeDecimal(Reader& reader) {
  Decimal number;
  number.digits = reader.TakeDigits();
  if (!number.digits.empty() && number.digits.size() <= 3 && number.digits[0] != '0') {
    while (TakeThousands(reader, number.digits)) number.grouped = true;
  }
  if (reader.peek() == '.' && reader.digit(1)) {
    reader.Take(".");
    const std::string decimals = reader.TakeDigits();
    number.digits += decimals;
    number.exponent = -static_cast<int64_t>(decimals.size());
    number.plain = false;
  }
  if (TakePowerOfTen(reader, number.exponent) ||
      (number.plain && number.digits == "10" && TakePowerOfTheTen(reader, number))) {
    number.plain = false;
  }
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

bool StartsDigits(const Reader& reader) {
  return reader.digit() || (reader.peek() == '.' && reader.digit(1));
}

// The rest of "3/4", after its 3: one slash and digits, and no second slash, which makes it a date
// or a path. kNotRead where the two make no number: "1/0", "3.5/2".
std::optional<double> TakeDenominator(Reader& reader, bool plain_numerator) {
  Reader ahead = reader;
  ahead.Take(" ");
  if (!ahead.TakeAny(kSlashes)) return std::nullopt;
  ahead.Take(" ");
  const bool negative = ahead.TakeAny(kMinus);
  if (!StartsDigits(ahead)) return std::nullopt;
  const Decimal denominator = TakeDecimal(ahead);
  Reader after = ahead;
  after.Take(" ");
  if (after.TakeAny(kSlashes) && (after.digit() || after.peek() == ' ')) return std::nullopt;
  reader = ahead;
  const double value = ValueOf(denominator);
  if (!plain_numerator || !denominator.plain || value == 0) return kNotRead;
  return negative ? -value : value;
}

// {3}, or the 3 of \frac34. kNotRead: braces around something else.
std::optional<double> TakeLatexArgument(Reader& reader) {
  reader.SkipSpaces();
  if (reader.digit()) {
    const double value = reader.peek() - '0';
    reader.Take(std::string(1, reader.peek()));
    return value;
  }
  Reader ahead = reader;
  if (!ahead.Take("{")) return std::nullopt;
  ahead.SkipSpaces();
  const bool negative = ahead.TakeAny(kMinus);
  if (StartsDigits(ahead)) {
    const double value = ValueOf(TakeDecimal(ahead));
    ahead.SkipSpaces();
    if (ahead.Take("}")) {
      reader = ahead;
      return negative ? -value : value;
    }
  }
  if (!reader.SkipBraces()) return std::nullopt;
  return kNotRead;
}

// \frac{3}{4}, at its backslash. kNotRead: of something else than two numbers.
std::optional<double> TakeLatexFraction(Reader& reader) {
  if (!reader.TakeAny(kFractions)) return std::nullopt;
  const std::optional<double> over = TakeLatexArgument(reader);
  const std::optional<double> under = over.has_value() ? TakeLatexArgument(reader) : std::nullopt;
  if (!under.has_value() || *under == 0) return kNotRead;
  return *over / *under;
}

std::optional<double> TakeVulgarFraction(Reader& reader) {
  for (const auto& [text, over, under] : kVulgarFractions) {
    if (reader.Take(text)) return over / under;
  }
  return std::nullopt;
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

std::string_view WithoutSpacesAtEnd(std::string_view text) {
  while (!text.empty() && absl::ascii_isspace(text.back())) text.remove_suffix(1);
  return text;
}

// In either case.
bool EndsInWord(std::string_view text, std::string_view word) {
  return text.size() >= word.size() &&
         std::ranges::equal(text.substr(text.size() - word.size()), word, {}, absl::ascii_tolower);
}

bool CanBeTakenFrom(std::string_view before) {
  if (before.empty()) return false;
  const char last = before.back();
  return absl::ascii_isalnum(last) || last == ')' || last == ']' || last == '}' || last == '%';
}

// "minus 5" and "negative 5", but not "10 minus 5" or "x minus 5".
bool EndsInWordOfSign(std::string_view before) {
  const auto take_word = [&before](std::string_view word) {
    if (!EndsInWord(before, word)) return false;
    before.remove_suffix(word.size());
    return before.empty() || absl::ascii_isspace(before.back());
  };
  if (take_word("negative")) return true;
  if (!take_word("minus")) return false;
  before = WithoutSpacesAtEnd(before);
  const bool word = before.size() > 1 && absl::ascii_isalpha(before.back()) &&
                    absl::ascii_isalpha(before[before.size() - 2]);
  return word || !CanBeTakenFrom(before);
}

// A minus right before the number is its sign unless something stands before it from which the
// number could be taken away ("7-3", "x-3", "(2)-3"). After a space it may be the hyphen of a list,
// except after "=" or "(".
bool IsNegative(std::string_view before) {
  TakeOffEnd(before, kCurrency);
  if (TakeOffEnd(before, kMinus)) return !CanBeTakenFrom(before);
  if (!before.ends_with(' ')) return false;
  before.remove_suffix(1);
  if (!TakeOffEnd(before, kMinus)) return EndsInWordOfSign(before);
  before = WithoutSpacesAtEnd(before);
  return before.ends_with('=') || before.ends_with('(');
}

// The 2 of "14 m2".
bool IsPowerOfUnit(const Reader& reader) {
  if ((reader.peek() != '2' && reader.peek() != '3') || absl::ascii_isalnum(reader.peek(1)) ||
      (reader.peek(1) == '.' && reader.digit(2))) {
    return false;
  }
  const std::string_view before = reader.before();
  size_t begin = before.size();
  while (begin > 0 && absl::ascii_isalpha(before[begin - 1])) --begin;
  return std::ranges::find(kUnits, before.substr(begin)) != kUnits.end();
}

// What follows a digit makes it part of something that no rule here reads: "0x10", "2e5x".
bool GoesOnAsCode(const Reader& reader, const Decimal& decimal) {
  Reader ahead = reader;
  if (ahead.Take("e") || ahead.Take("E")) {
    if (!ahead.TakeAny(kMinus)) ahead.Take("+");
    return ahead.digit();
  }
  const bool radix = ahead.Take("x") || ahead.Take("X") || ahead.Take("b") || ahead.Take("o");
  return radix && decimal.digits == "0" && absl::ascii_isxdigit(ahead.peek());
}

// " 234" after "1": thousands in other conventions, two numbers in English, so neither.
bool SpaceAndThreeDigits(const Reader& reader) {
  return reader.peek() == ' ' && reader.digit(1) && reader.digit(2) && reader.digit(3) &&
         !reader.digit(4);
}

bool GoesOn(const Reader& reader, const Decimal& decimal, bool in_list) {
  if (GoesOnAsCode(reader, decimal)) return true;
  if (decimal.plain && !decimal.grouped && decimal.digits.size() <= 3 &&
      !decimal.digits.starts_with('0') && SpaceAndThreeDigits(reader)) {
    return true;
  }
  Reader ahead = reader;
  if (in_list && ahead.peek() == ',') return false;
  return ahead.TakeAny(kJoins) && ahead.digit();
}

// To the end of what goes on.
void SkipJoined(Reader& reader) {
  const bool spaces = SpaceAndThreeDigits(reader);
  for (;;) {
    reader.SkipWord();
    Reader ahead = reader;
    const bool exponent = EndsInWord(reader.before(), "e") && ahead.TakeAny(kMinus);
    const bool joined = exponent || ahead.TakeAny(kJoins) || ahead.TakeAny(kSlashes) ||
                        (spaces && SpaceAndThreeDigits(ahead) && ahead.Take(" "));
    if (!joined || !ahead.digit()) return;
    reader = ahead;
  }
}

// Where the list "1,2,3" ends that begins at `at`; `at` if none does. One comma is no list, it may
// be that of decimals, and neither are groups of three digits.
size_t EndOfList(std::string_view text, size_t at) {
  size_t end = at, commas = 0, group = 0;  // group: the digits since the last comma
  bool decimals = false;                   // of this group
  for (size_t i = at; i < text.size(); ++i) {
    if (absl::ascii_isdigit(text[i])) {
      if (!decimals) ++group;
      end = i + 1;
      continue;
    }
    const bool digit_follows = i + 1 < text.size() && absl::ascii_isdigit(text[i + 1]);
    if (!digit_follows || (text[i] != ',' && text[i] != '.')) break;
    decimals = text[i] == '.';
    if (decimals) continue;
    if (commas > 0 && group == 3) return at;
    ++commas;
    group = 0;
  }
  return commas > 1 && group != 3 ? end : at;
}

bool StartsDecimals(const Reader& reader) {
  if (reader.peek() != '.' || !reader.digit(1)) return false;
  const std::string_view before = reader.before();
  return before.empty() || (!absl::ascii_isalnum(before.back()) && before.back() != '.');
}

bool IsAfterSlash(std::string_view before) {
  if (before.ends_with(' ')) before.remove_suffix(1);
  return TakeOffEnd(before, kSlashes);
}

bool TakePercent(Reader& reader) {
  Reader ahead = reader;
  ahead.Take(" ");
  if (!ahead.Take("%") && !ahead.Take("\\%")) return false;
  reader = ahead;
  return true;
}

WrittenNumber FromFraction(double value, bool negative) {
  return {.value = negative ? -value : value};
}

// At a digit, or at a period before one.
WrittenNumber TakeDecimalOrQuotient(Reader& reader, bool negative, bool in_list) {
  const bool after_slash = IsAfterSlash(reader.before());
  const Decimal decimal = TakeDecimal(reader);
  std::optional<double> denominator;
  if (!after_slash) denominator = TakeDenominator(reader, decimal.plain);
  if (GoesOn(reader, denominator.has_value() ? Decimal{.plain = false} : decimal, in_list)) {
    SkipJoined(reader);
    return {.value = kNotRead};
  }
  if (!denominator.has_value()) return FromDecimal(decimal, negative);
  return FromFraction(ValueOf(decimal) / *denominator, negative);
}

// The number that begins at `reader`, if one does. One with value kNotRead is what looks like a
// number and is none.
std::optional<WrittenNumber> TakeNumber(Reader& reader, bool in_list) {
  const bool negative = IsNegative(reader.before());
  std::optional<WrittenNumber> number;
  if (reader.digit() ? !IsPowerOfUnit(reader) : StartsDecimals(reader)) {
    number = TakeDecimalOrQuotient(reader, negative, in_list);
  } else if (std::optional<double> value = TakeLatexFraction(reader); value.has_value()) {
    number = FromFraction(*value, negative);
  } else if (value = TakeVulgarFraction(reader); value.has_value()) {
    number = FromFraction(*value, negative);
  }
  if (!number.has_value()) return std::nullopt;
  if (TakeExponent(reader).has_value()) number = WrittenNumber{.value = kNotRead};
  number->percent = TakePercent(reader);
  return number;
}

// An exponent that no number has before it: that of a unit, "14 cm^2", or of a variable.
void SkipExponent(Reader& reader) {
  if (!reader.Take("^") || reader.SkipBraces()) return;
  reader.Take("{");
  reader.TakeAny(kMinus);
  reader.TakeDigits();
}

// "1 1/2" and "1\frac{1}{2}" are one and a half: a fraction below 1 that follows an integer.
bool IsMixed(const WrittenNumber& whole, const WrittenNumber& fraction, std::string_view between) {
  return (between.empty() || between == " ") && whole.is_integer && !whole.percent &&
         fraction.decimal.empty() && fraction.value > 0 && fraction.value < 1;
}

// Infinite values, of digits beyond the range of a double, are the same as nothing: otherwise a
// completion of digits alone would be the answer to every question.
bool SameValue(double a, double b, double tolerance) {
  if (!std::isfinite(a) || !std::isfinite(b)) return false;
  return std::abs(a - b) <= tolerance * std::max(std::abs(a), std::abs(b));
}

// Full-width forms, U+FF01 to U+FF5E, as the ASCII characters that they are: \uff11\uff14 is 14.
std::string WithoutFullWidth(std::string_view text) {
  std::string plain;
  plain.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = [&](size_t ahead) {
      return i + ahead < text.size() ? static_cast<unsigned char>(text[i + ahead]) : 0U;
    };
    const unsigned code = byte(0) != 0xef ? 0 : 0xf000 + ((byte(1) & 0x3f) << 6) + (byte(2) & 0x3f);
    const bool full_width =
        (byte(1) == 0xbc || byte(1) == 0xbd) && code >= 0xff01 && code <= 0xff5e;
    plain.push_back(full_width ? static_cast<char>(code - 0xff01 + '!') : text[i]);
    if (full_width) i += 2;
  }
  return plain;
}

}  // namespace

std::vector<WrittenNumber> NumbersIn(std::string_view written) {
  const std::string text = WithoutFullWidth(written);
  std::vector<WrittenNumber> numbers;
  size_t end = 0;  // of the number before
  size_t end_of_list = 0;
  for (size_t i = 0; i < text.size();) {
    Reader reader(text, i);
    if (i >= end_of_list && reader.digit()) end_of_list = EndOfList(text, i);
    std::optional<WrittenNumber> number = TakeNumber(reader, i < end_of_list);
    if (!number.has_value()) {
      SkipExponent(reader);
      i = std::max(i + 1, reader.at());
      continue;
    }
    const std::string_view between = std::string_view(text).substr(end, i - end);
    if (!numbers.empty() && IsMixed(numbers.back(), *number, between)) {
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
