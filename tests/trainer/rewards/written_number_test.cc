#include "trainer/rewards/written_number.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace tandem::trainer {
namespace {

using ::testing::NanSensitiveDoubleEq;
using ::testing::Pointwise;

// What looks like a number and is not read.
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

struct NumberCase {
  std::string name, text;
  std::vector<double> want;
};

class WrittenNumbers : public ::testing::TestWithParam<NumberCase> {};

TEST_P(WrittenNumbers, AreReadAsPeopleWriteThem) {
  std::vector<double> values;
  for (const WrittenNumber& number : NumbersIn(GetParam().text)) values.push_back(number.value);
  EXPECT_THAT(values, Pointwise(NanSensitiveDoubleEq(), GetParam().want)) << GetParam().text;
}

// clang-format off
INSTANTIATE_TEST_SUITE_P(Table, WrittenNumbers, ::testing::Values(
    NumberCase{"Plain", "so 12", {12}},
    NumberCase{"LeadingZeros", "007", {7}},
    NumberCase{"Negative", "x = -7", {-7}},
    NumberCase{"TypographicMinus", "x = \u22127", {-7}},
    NumberCase{"EnDash", "x = \u20137", {-7}},
    NumberCase{"Plus", "x = +7", {7}},
    NumberCase{"MinusBetweenNumbersIsNoSign", "10-7", {10, 7}},
    NumberCase{"TypographicMinusBetweenNumbersIsNoSign", "10\u22127", {10, 7}},
    NumberCase{"MinusAfterALetterIsNoSign", "x-7", {7}},
    NumberCase{"MinusAfterABracketIsNoSign", "(2)-7", {2, 7}},
    NumberCase{"MinusInABracket", "(-7)", {-7}},
    NumberCase{"AHyphenOfAListIsNoSign", "- 7", {7}},
    NumberCase{"Date", "2024-05-06", {2024, 5, 6}},
    NumberCase{"DateWithSlashes", "12/05/2024", {12, 5, 2024}},
    NumberCase{"Decimals", "3.14", {3.14}},
    NumberCase{"DecimalsAlone", "x is .5", {0.5}},
    NumberCase{"PeriodAtTheEnd", "It is 12.", {12}},
    NumberCase{"DecimalsAndPeriod", "It is 3.14.", {3.14}},
    NumberCase{"Section", "see 1.2.3", {kNone}},
    NumberCase{"Thousands", "1,234", {1234}},
    NumberCase{"Millions", "-1,234,567.25", {-1234567.25}},
    NumberCase{"NoBreakSpace", "1\u00a0234\u00a0567", {1234567}},
    NumberCase{"ThinSpace", "1\u202f234", {1234}},
    NumberCase{"LatexThousands", "1{,}234", {1234}},
    NumberCase{"TwoDigitsAreNoThousands", "1,23", {kNone}},
    NumberCase{"FourDigitsAreNoThousands", "1,2345", {kNone}},
    NumberCase{"LongRunsHaveNoThousands", "1234,567", {kNone}},
    NumberCase{"AList", "1, 234", {1, 234}},
    NumberCase{"Dollars", "$1,234.50", {1234.5}},
    NumberCase{"NegativeDollars", "-$5", {-5}},
    NumberCase{"DollarsNegative", "$-5", {-5}},
    NumberCase{"EscapedDollars", "-\\$5", {-5}},
    NumberCase{"Euros", "\u20ac5 or 5\u20ac", {5, 5}},
    NumberCase{"Percent", "50%", {50}},
    NumberCase{"Scientific", "1.5e3", {1500}},
    NumberCase{"ScientificNegative", "2E-4", {2e-4}},
    NumberCase{"ScientificPlus", "2e+4", {2e4}},
    NumberCase{"TimesATen", "6.02 \u00d7 10^23", {6.02e23}},
    NumberCase{"LatexTimesATen", "6 \\times 10^{-3}", {6e-3}},
    NumberCase{"ALetterAfterIsNoExponent", "2e5x", {kNone}},
    NumberCase{"AProductIsNoPower", "6 x 10", {6, 10}},
    NumberCase{"Fraction", "3/4", {0.75}},
    NumberCase{"NegativeFraction", "-3/4", {-0.75}},
    NumberCase{"LatexFraction", "\\frac{3}{4}", {0.75}},
    NumberCase{"NegativeLatexFraction", "-\\dfrac{3}{4}", {-0.75}},
    NumberCase{"MixedNumber", "1 1/2", {1.5}},
    NumberCase{"NegativeMixedNumber", "-1 1/2", {-1.5}},
    NumberCase{"AQuotientOfDecimalsIsNone", "3.5/2", {kNone}},
    NumberCase{"OverZeroIsNoFraction", "3/0", {kNone}},
    NumberCase{"FractionWithSpaces", "3 / 4", {0.75}},
    NumberCase{"FractionSlash", "1\u20442", {0.5}},
    NumberCase{"FractionOfAUnit", "3/4cup", {0.75}},
    NumberCase{"NegativeDenominator", "1/-2", {-0.5}},
    NumberCase{"VulgarFraction", "\u00bd", {0.5}},
    NumberCase{"MixedVulgarFraction", "2\u00bd or -3 \u00be", {2.5, -3.75}},
    NumberCase{"LatexFractionWithASign", "\\frac{-1}{2} and \\frac{1}{-2}", {-0.5, -0.5}},
    NumberCase{"LatexFractionWithoutBraces", "\\frac12", {0.5}},
    NumberCase{"LatexFractionOfThousands", "\\frac{1,000}{2}", {500}},
    NumberCase{"MixedLatexFraction", "2\\frac{1}{2}", {2.5}},
    NumberCase{"NegativeMixedLatexFraction", "-2 \\frac{1}{2}", {-2.5}},
    NumberCase{"LatexFractionOfSomethingElseIsNone", "\\frac{x}{2} = 3", {kNone, 3}},
    NumberCase{"LatexFractionOfAFractionIsNone", "\\frac{1}{\\frac{2}{3}} = 1.5", {kNone, 1.5}},
    NumberCase{"LatexFractionThatIsCutOff", "\\frac{1}{2", {kNone, 2}},
    NumberCase{"OverZeroWithSpaces", "1 / 0", {kNone}},
    NumberCase{"DateWithSpacedSlashes", "12 / 05 / 2024", {12, 5, 2024}},
    NumberCase{"DecimalComma", "0,5", {kNone}},
    NumberCase{"DecimalCommaAfterThree", "0,123", {kNone}},
    NumberCase{"LatexDecimalComma", "0{,}5", {kNone}},
    NumberCase{"ThousandsWithPeriods", "1.234.567", {kNone}},
    NumberCase{"ThousandsWithPeriodsAndADecimalComma", "1.234,5", {kNone}},
    NumberCase{"ThousandsWithAnApostrophe", "1'234 or 1\u2019234", {kNone, kNone}},
    NumberCase{"ThousandsWithAnUnderscore", "1_000", {kNone}},
    NumberCase{"ThousandsWithASpace", "1 234", {kNone}},
    NumberCase{"MillionsWithASpace", "1 000 000 in all", {kNone}},
    NumberCase{"ThreeDigitsAfterAYear", "In 2020 100 people", {2020, 100}},
    NumberCase{"ThreeDigitsAfterThousands", "3,000 400", {3000, 400}},
    NumberCase{"LatexThinSpaces", "14\\,000 and 10,\\!000", {14000, 10000}},
    NumberCase{"IndianGroups", "12,34,567", {kNone}},
    NumberCase{"GroupsThatEndShort", "1,234,56", {kNone}},
    NumberCase{"GroupsThatEndInOne", "1,234,5", {kNone}},
    NumberCase{"ACommaAfterDecimals", "1,234.5,6", {kNone}},
    NumberCase{"AListWithoutSpaces", "1,2,3.", {1, 2, 3}},
    NumberCase{"AListOfDecimals", "1.5,10,0.25", {1.5, 10, 0.25}},
    NumberCase{"Hexadecimal", "0x10", {kNone}},
    NumberCase{"TwoTimes", "2x10", {2, 10}},
    NumberCase{"AnExponentOfFourDigits", "1e1000 or 1e-1000", {kNone, kNone}},
    NumberCase{"APowerOfTen", "10^3 and -10^{2}", {1000, -100}},
    NumberCase{"SuperscriptPowerOfTen", "1.5 \u00d7 10\u00b2\u00b3 and 10\u207b\u00b9", {1.5e23, 0.1}},
    NumberCase{"APowerIsNone", "2^10 = 1024", {kNone, 1024}},
    NumberCase{"ASuperscriptPowerIsNone", "2\u00b2", {kNone}},
    NumberCase{"DegreesAndOrdinals", "14^\\circ and 14^{\\circ} and 14^{th}", {14, 14, 14}},
    NumberCase{"SquareOfAUnit", "14 cm^2 and 14 cm^{2}", {14, 14}},
    NumberCase{"SquareOfALatexUnit", "14 \\text{ cm}^2", {14}},
    NumberCase{"SquareOfAUnitInOneWord", "14 m2", {14}},
    NumberCase{"CubeOfAUnitInOneWord", "14cm3.", {14}},
    NumberCase{"QuotientOfUnits", "14 m/s^2 or 14 m/s2 or 14 km/h", {14, 14, 14}},
    NumberCase{"NegativePowerOfAUnit", "14 kg m^-3 s^{-1}", {14}},
    NumberCase{"ADigitAfterAnotherLetter", "x2", {2}},
    NumberCase{"Minus", "The answer is minus 5", {-5}},
    NumberCase{"MinusAlone", "Minus $5", {-5}},
    NumberCase{"NegativeAsAWord", "negative 5", {-5}},
    NumberCase{"MinusAsAnOperation", "10 minus 5, x minus 5", {10, 5, 5}},
    NumberCase{"MinusAndASpaceAfterAnEqualsSign", "x = - 5 + (- 3)", {-5, -3}},
    NumberCase{"FullWidth", "\uff11\uff14", {14}},
    NumberCase{"FullWidthSigns", "\uff0d\uff11\uff0c\uff12\uff13\uff14\uff0e\uff15\uff05", {-1234.5}},
    NumberCase{"FullWidthThatIsCutOff", "5\xef\xbc", {5}},
    NumberCase{"OtherDigitsAreNone", "\u0661\u0664", {}},
    NumberCase{"Zero", "-0", {0}},
    NumberCase{"None", "twelve", {}}),
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

TEST(SameNumber, WhatIsNotReadIsTheSameAsNothing) {
  for (const std::string text : {"0,5", "1.234,5", "1'234", "3/0", "2^10", "0x10", "1 234"}) {
    EXPECT_FALSE(Same(text, text)) << text;
    EXPECT_FALSE(Same(text, "5")) << text;
    EXPECT_FALSE(Same(text, "0")) << text;
  }
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
