#include "common/http/url_query.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(ParseQuery, SplitsNamesAndValues) {
  EXPECT_THAT(ParseQuery("mode=keep&clear_cache=false"),
              ElementsAre(Pair("clear_cache", "false"), Pair("mode", "keep")));
}

TEST(ParseQuery, DecodesPercentAndPlusSigns) {
  EXPECT_THAT(ParseQuery("a%20b=c+d%3D%26"), ElementsAre(Pair("a b", "c d=&")));
}

TEST(ParseQuery, LeavesAPercentSignWithoutTwoDigitsAsItIs) {
  EXPECT_THAT(ParseQuery("a=%&b=%2&c=%zz"),
              ElementsAre(Pair("a", "%"), Pair("b", "%2"), Pair("c", "%zz")));
}

TEST(ParseQuery, TakesNamesWithoutValuesAndTheLastOfRepeatedOnes) {
  EXPECT_THAT(ParseQuery("a&b=&a=2&&=x"),
              ElementsAre(Pair("", "x"), Pair("a", "2"), Pair("b", "")));
  EXPECT_THAT(ParseQuery(""), IsEmpty());
}

}  // namespace
}  // namespace tandem
