#include "common/options/nearest_name.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(NearestNameTest, FindsATypingErrorAndStaysSilentOtherwise) {
  const std::vector<std::string> names = {"--temperature", "--top-k", "--top-p"};
  EXPECT_EQ(NearestIfClose("--temprature", names), "--temperature");
  EXPECT_EQ(NearestIfClose("--topk", names), "--top-k");
  EXPECT_EQ(NearestIfClose("--zzzzzzzz", names), "");
  // Two letters of five are too many, though fewer than half.
  EXPECT_EQ(NearestIfClose("--tip-p", {"--top-p"}), "--top-p");
  EXPECT_EQ(NearestIfClose("--tip-l", {"--top-p"}), "");
  EXPECT_EQ(NearestIfClose("x", {"run", "eval"}), "");
  EXPECT_EQ(NearestIfClose("run", {}), "");
}

TEST(NearestNameTest, TwoLettersThatChangedPlacesAreOneError) {
  EXPECT_EQ(NearestIfClose("benhc", {"bench"}), "bench");
  EXPECT_EQ(NearestIfClose("rnu", {"run"}), "run");
}

TEST(NearestNameTest, ANameThatEndsWithWhatWasWrittenIsNear) {
  EXPECT_EQ(NearestIfClose("--tokens", {"--token-file", "--max-new-tokens"}), "--max-new-tokens");
  EXPECT_EQ(NearestIfClose("attribute", {"drift attribute", "status"}), "drift attribute");
  EXPECT_EQ(NearestIfClose("--size", {"--resize", "--group-size"}), "--group-size");
}

TEST(NearestNameTest, TheRightLastPartUnderAnotherSectionIsNear) {
  EXPECT_EQ(
      NearestDotted("server.dtype", {"server.listen", "trainer.dtype", "server.engine.dtype"}),
      "server.engine.dtype");
  EXPECT_EQ(NearestDotted("server.steps", {"server.listen", "trainer.steps"}), "trainer.steps");
}

TEST(NearestNameTest, ADottedNameWithoutItsSectionsIsNear) {
  const std::vector<std::string> names = {"trainer.capture.every", "trainer.checkpoint.every",
                                          "trainer.steps"};
  EXPECT_EQ(NearestDotted("steps", names), "trainer.steps");
  EXPECT_EQ(NearestDotted("checkpoint.every", names), "trainer.checkpoint.every");
  EXPECT_EQ(NearestDotted("trainer.stepz", names), "trainer.steps");
}

TEST(NearestNameTest, ADottedNameLikeNoneOfThemHasNoNearest) {
  EXPECT_EQ(NearestDotted("banana", {"trainer.steps", "server.listen"}), "");
  EXPECT_EQ(NearestDotted("trainer.banana", {"trainer.steps", "trainer.seed"}), "");
}

}  // namespace
}  // namespace tandem
