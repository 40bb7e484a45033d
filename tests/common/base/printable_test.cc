#include "common/base/printable.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(Printable, LeavesLettersOfEveryScriptAsTheyAre) {
  const std::string text = "plain \\ \"text\", \xc3\xa4 \xe6\x97\xa5 \xf0\x9f\x98\x80";
  EXPECT_EQ(Printable(text), text);
  EXPECT_EQ(Printable(""), "");
}

TEST(Printable, WritesOutWhatActsOnATerminal) {
  EXPECT_EQ(Printable("a\nb\rc\td"), "a\\nb\\rc\\td");
  EXPECT_EQ(Printable(std::string_view("\0\x1b\x7f", 3)), "\\u0000\\u001b\\u007f");
  EXPECT_EQ(Printable("\xc2\x80\xc2\x9f\xc2\xa0"), "\\u0080\\u009f\xc2\xa0");
  EXPECT_EQ(Printable("\xe2\x80\xa8\xe2\x80\xae\xe2\x81\xa6\xe2\x80\x8f\xd8\x9c"),
            "\\u2028\\u202e\\u2066\\u200f\\u061c");
}

TEST(Printable, ReplacesBytesThatAreNoUtf8) {
  const std::string bad = "\xef\xbf\xbd";
  EXPECT_EQ(Printable("\x9b"), bad);
  EXPECT_EQ(Printable("\xc0\x9b"), bad + bad) << "ESC, written too long";
  EXPECT_EQ(Printable("\xe0\x80\x9b"), bad + bad + bad) << "longer still";
  EXPECT_EQ(Printable("\xed\xa0\x80"), bad + bad + bad) << "half of a pair";
  EXPECT_EQ(Printable("\xf5\x80\x80\x80"), bad + bad + bad + bad) << "past the last character";
  EXPECT_EQ(Printable("a\xe6\x97"), "a" + bad + bad) << "cut in the middle";
}

TEST(Printable, KeepsTheLinesOfAMessageThatHasSeveral) {
  EXPECT_EQ(PrintableLines("a\x1b\nb\tc\n"), "a\\u001b\nb\\tc\n");
  EXPECT_EQ(PrintableLines("one"), "one");
}

}  // namespace
}  // namespace tandem
