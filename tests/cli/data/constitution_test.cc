#include "cli/data/constitution.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/status_matchers.h"

namespace tandem::cli {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Constitution, PrinciplesAloneComeWithTemplatesOfTheirOwn) {
  const auto constitution = ParseConstitution("Be kind.\n\n  Be short. \n", "c.txt");
  ASSERT_THAT(constitution, IsOk());
  EXPECT_THAT(constitution->principles, ElementsAre("Be kind.", "Be short."));
  EXPECT_THAT(constitution->critique, HasSubstr("{principle}"));
  EXPECT_THAT(constitution->revision, HasSubstr("{critique}"));
}

TEST(Constitution, ItsOwnTemplatesStandBeforeThePrinciples) {
  const auto constitution = ParseConstitution(
      "What is wrong with {response}?\n---\nMend: {critique}\n-----\nBe kind.\n", "c.txt");
  ASSERT_THAT(constitution, IsOk());
  EXPECT_EQ(constitution->critique, "What is wrong with {response}?");
  EXPECT_EQ(constitution->revision, "Mend: {critique}");
  EXPECT_THAT(constitution->principles, ElementsAre("Be kind."));
}

TEST(Constitution, SaysWhatIsMissing) {
  const auto fails = [](const std::string& text, const std::string& message) {
    EXPECT_THAT(ParseConstitution(text, "c.txt").status(),
                FailsWith(absl::StatusCode::kInvalidArgument, message));
  };
  fails("\n", "c.txt has no principle");
  fails("{response}\n---\nBe kind.\n", "c.txt has 2 parts");
  fails("no place\n---\n{critique}\n---\nBe kind.\n", "template of the critique has no {response}");
  fails("{response}\n---\nno place\n---\nBe kind.\n", "template of the revision has no {critique}");
}

TEST(Constitution, WhatAResponseSaysIsNoPlace) {
  EXPECT_EQ(
      FillTemplate(
          "{prompt}|{response}|{critique}|{principle}|{else}",
          {.prompt = "{response}", .response = "{critique}", .critique = "c", .principle = "p"}),
      "{response}|{critique}|c|p|{else}");
}

TEST(Constitution, ARevisionStandsAfterItsHeadOrAlone) {
  EXPECT_EQ(*ParseRevision(" better \n"), "better");
  EXPECT_EQ(*ParseRevision("The critique is right.\n\n**Revision:** better\nand better\n"),
            "better\nand better");
  EXPECT_EQ(*ParseRevision("Revision: one\nRevision: two"), "two");
  EXPECT_THAT(ParseRevision("Revision:\n ").status(),
              FailsWith(absl::StatusCode::kInvalidArgument, "no revision"));
}

}  // namespace
}  // namespace tandem::cli
