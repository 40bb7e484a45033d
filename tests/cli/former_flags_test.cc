#include "cli/io/subcommand.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(FormerFlagsTest, AFormerNameIsReplacedWithAWarningThatNamesTheCurrentOne) {
  const CurrentArguments now =
      WithCurrentFlags({"bench", "train", "--model", "m", "--group=8", "--new-tokens", "16"});
  EXPECT_THAT(now.arguments, ElementsAre("bench", "train", "--model", "m", "--group-size=8",
                                         "--max-new-tokens", "16"));
  EXPECT_THAT(now.warnings,
              ElementsAre("tandem bench train: --group is called --group-size now",
                          "tandem bench train: --new-tokens is called --max-new-tokens now"));
}

TEST(FormerFlagsTest, TheSameWordCanBeTwoFlagsOfTwoCommands) {
  EXPECT_THAT(WithCurrentFlags({"score", "--max-tokens", "9"}).arguments,
              ElementsAre("score", "--max-line-tokens", "9"));
  EXPECT_THAT(WithCurrentFlags({"eval", "--max-tokens", "9"}).arguments,
              ElementsAre("eval", "--max-new-tokens", "9"));
  // --servers was the number of servers in a benchmark, but it means addresses in these commands.
  EXPECT_THAT(WithCurrentFlags({"status", "--servers", "a:1"}).arguments,
              ElementsAre("status", "--servers", "a:1"));
}

TEST(FormerFlagsTest, WhatIsCurrentOrBehindTwoDashesStays) {
  const CurrentArguments now =
      WithCurrentFlags({"generate", "--max-new-tokens", "4", "--", "--max-tokens"});
  EXPECT_THAT(now.arguments,
              ElementsAre("generate", "--max-new-tokens", "4", "--", "--max-tokens"));
  EXPECT_THAT(now.warnings, IsEmpty());
  EXPECT_THAT(WithCurrentFlags({}).arguments, IsEmpty());
}

}  // namespace
}  // namespace tandem::cli
