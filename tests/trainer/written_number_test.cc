#include "trainer/written_number.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tandem::trainer {
namespace {

using ::testing::ElementsAreArray;

struct Case {
  std::string name, text;
  std::vector<double> want;
};

class WrittenNumbers : public ::testing::TestWithParam<Case> {};

TEST_P(WrittenNumbers, AreReadAsPeopleWriteThem) {
  std::vector<double> values;
  for (const WrittenNumber& number : NumbersIn(GetParam().text)) values.push_back(number.value);
  EXPECT_THAT(values, ElementsAreArray(GetParam().want)) << GetParam().text;
}

// clang-format off
INSTANTIATE_TEST_SUITE_P(Table, WrittenNumbers, ::testing::Values(
    Case{"Plain", "so 12", {12}},
    Case{"LeadingZeros", "007", {7}},
    Case{"Negative", "x = -7", {-7}},
    Case{"TypographicMinus", "x = \u22127", {-7}},
    Case{"EnDash", "x = \u20137", {-7}},
    Case{"Plus", "x = +7", {7}},
    Case{"MinusBetweenNumbersIsNoSign", "10-7", {10, 7}},
    Case{"TypographicMinusBetweenNumbersIsNoSign", "10\u22127", {10, 7}},
    Case{"MinusAfterALetterIsNoSign", "x-7", {7}},
    Case{"MinusAfterABracketIsNoSign", "(2)-7", {2, 7}},
    Case{"MinusInABracket", "(-7)", {-7}},
    Case{"AHyphenOfAListIsNoSign", "- 7", {7}},
    Case{"Date", "2024-05-06", {2024, 5, 6}},
    Case{"DateWithSlashes", "12/05/2024", {12, 5, 2024}},
    Case{"Decimals", "3.14", {3.14}},
    Case{"DecimalsAlone", "x is .5", {0.5}},
    Case{"PeriodAtTheEnd", "It is 12.", {12}},
    Case{"DecimalsAndPeriod", "It is 3.14.", {3.14}},
    Case{"Section", "see 1.2.3", {1.2, 3}},
    Case{"Thousands", "1,234", {1234}},
    Case{"Millions", "-1,234,567.25", {-1234567.25}},
    Case{"NoBreakSpace", "1\u00a0234\u00a0567", {1234567}},
    Case{"ThinSpace", "1\u202f234", {1234}},
    Case{"LatexThousands", "1{,}234", {1234}},
    Case{"TwoDigitsAreNoThousands", "1,23", {1, 23}},
    Case{"FourDigitsAreNoThousands", "1,2345", {1, 2345}},
    Case{"LongRunsHaveNoThousands", "1234,567", {1234, 567}},
    Case{"AList", "1, 234", {1, 234}},
    Case{"Dollars", "$1,234.50", {1234.5}},
    Case{"NegativeDollars", "-$5", {-5}},
    Case{"DollarsNegative", "$-5", {-5}},
    Case{"EscapedDollars", "-\\$5", {-5}},
    Case{"Euros", "\u20ac5 or 5\u20ac", {5, 5}},
    Case{"Percent", "50%", {50}},
    Case{"Scientific", "1.5e3", {1500}},
    Case{"ScientificNegative", "2E-4", {2e-4}},
    Case{"ScientificPlus", "2e+4", {2e4}},
    Case{"TimesATen", "6.02 \u00d7 10^23", {6.02e23}},
    Case{"LatexTimesATen", "6 \\times 10^{-3}", {6e-3}},
    Case{"ALetterAfterIsNoExponent", "2e5x", {2, 5}},
    Case{"AProductIsNoPower", "6 x 10", {6, 10}},
    Case{"Fraction", "3/4", {0.75}},
    Case{"NegativeFraction", "-3/4", {-0.75}},
    Case{"LatexFraction", "\\frac{3}{4}", {0.75}},
    Case{"NegativeLatexFraction", "-\\dfrac{3}{4}", {-0.75}},
    Case{"MixedNumber", "1 1/2", {1.5}},
    Case{"NegativeMixedNumber", "-1 1/2", {-1.5}},
    Case{"AQuotientOfDecimalsIsNone", "3.5/2", {3.5, 2}},
    Case{"OverZeroIsNoFraction", "3/0", {3, 0}},
    Case{"Zero", "-0", {0}},
    Case{"None", "twelve", {}}),
    [](const auto& info) { return info.param.name; });
// clang-format on

bool Same(const std::string& a, const std::string& b) {
  const auto first = NumbersIn(a), second = NumbersIn(b);
  EXPECT_EQ(first.size(), 1u) << a;
  EXPECT_EQ(second.size(), 1u) << b;
  EXPECT_EQ(SameNumber(first[0], second[0]), SameNumber(second[0], first[0]));
  return SameNumber(first[0], second[0]);
}

TEST(SameNumber, WaysToWriteOneNumberAreTheSame) {
  EXPECT_TRUE(Same("1,234.50", "1234.5"));
  EXPECT_TRUE(Same("12", "12.0"));
  EXPECT_TRUE(Same("1e3", "1000"));
  EXPECT_TRUE(Same("3/4", ".75"));
  EXPECT_TRUE(Same("6/2", "3"));
  EXPECT_TRUE(Same("1/3", "0.3333333"));
  EXPECT_TRUE(Same("0.1", "0.1000000000000000055"));
  EXPECT_TRUE(Same("-0", "0"));
  EXPECT_TRUE(Same("123456789012345678901234567890", "123,456,789,012,345,678,901,234,567,890"));
}

TEST(SameNumber, APercentSignIsAUnitOrAHundredth) {
  EXPECT_TRUE(Same("50%", "50"));
  EXPECT_TRUE(Same("50 %", "0.5"));
  EXPECT_TRUE(Same("50\\%", "50%"));
  EXPECT_FALSE(Same("50%", "5"));
  EXPECT_FALSE(Same("50%", "0.5%"));
}

TEST(SameNumber, NumbersThatAreCloseAreNotTheSame) {
  EXPECT_FALSE(Same("1000001", "1000000"));
  EXPECT_FALSE(Same("0.0000001", "0.0000002"));
  EXPECT_FALSE(Same("1234567.8", "1234567.9"));
  EXPECT_FALSE(Same("123456789012345678901", "123456789012345678902"));
  EXPECT_FALSE(Same("1/3", "0.33"));
  EXPECT_FALSE(Same("5", "-5"));
  EXPECT_FALSE(Same("0", "1e-300"));
}

// The largest double is 1.8e308.
TEST(SameNumber, NumbersTooLargeForADoubleAreTheSameOnlyByTheirDigits) {
  const std::string nines(400, '9');
  EXPECT_FALSE(Same("1e999%", "5"));
  EXPECT_FALSE(Same("1e999", "3.14"));
  EXPECT_FALSE(Same(nines, "0.5"));
  EXPECT_FALSE(Same(nines + "/1", "3/4"));
  EXPECT_FALSE(Same("1e999%", "1e998%"));
  EXPECT_TRUE(Same(nines, nines));
  EXPECT_FALSE(Same(nines, nines + "9"));
}

}  // namespace
}  // namespace tandem::trainer
