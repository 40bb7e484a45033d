#include "common/base/nearest_name.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(NearestNameTest, FindsATypingErrorAndStaysSilentOtherwise) {
  const std::vector<std::string> names = {"--temperature", "--top-k", "--top-p"};
  EXPECT_EQ(NearestIfClose("--temprature", names), "--temperature");
  EXPECT_EQ(NearestIfClose("--topk", names), "--top-k");
  EXPECT_EQ(NearestIfClose("--zzzzzzzz", names), "");
}

TEST(NearestNameTest, TheRightLastPartUnderAnotherSectionIsNear) {
  EXPECT_EQ(NearestDotted("server.dtype", {"server.listen", "server.engine.dtype"}),
            "server.engine.dtype");
}

}  // namespace
}  // namespace tandem
