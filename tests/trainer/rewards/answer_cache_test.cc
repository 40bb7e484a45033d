#include "trainer/rewards/answer_cache.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "common/files/file_system.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;

std::unique_ptr<AnswerCache> OpenCache(int64_t entries, const std::string& file = "") {
  auto cache = AnswerCache::Open({.entries = entries, .file = file});
  EXPECT_THAT(cache, IsOk());
  return *std::move(cache);
}

TEST(AnswerCache, ForgetsTheAnswerThatWasUsedLongestAgo) {
  const auto cache = OpenCache(2);
  cache->Store("a", {.value = 1});
  cache->Store("b", {.value = 2});
  EXPECT_DOUBLE_EQ(cache->Find("a", "")->value, 1);
  cache->Store("c", {.value = 3});
  EXPECT_FALSE(cache->Find("b", "").has_value());
  EXPECT_DOUBLE_EQ(cache->Find("a", "")->value, 1);
  cache->Store("a", {.value = 4});
  EXPECT_DOUBLE_EQ(cache->Find("a", "")->value, 4);
  EXPECT_DOUBLE_EQ(cache->Find("c", "")->value, 3);
}

TEST(AnswerCache, AFileOutlivesTheProcessAndHoldsMoreThanTheMemory) {
  TempDir directory;
  const std::string file = directory / "answers.sqlite";
  {
    const auto cache = OpenCache(1, file);
    cache->Store("a", {.value = 0.1 + 0.2, .steps = {{.end_byte = 2, .value = -1}}});
    cache->Store("b", {.value = 2});
  }
  const auto cache = OpenCache(1, file);
  const auto found = cache->Find("a", "abc");
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->value, 0.1 + 0.2);
  ASSERT_EQ(found->steps.size(), 1u);
  EXPECT_EQ(found->steps[0].end_byte, 2);
  EXPECT_DOUBLE_EQ(cache->Find("b", "")->value, 2);
  EXPECT_FALSE(cache->Find("c", "").has_value());
}

TEST(AnswerCache, StepsThatDoNotFitTheCompletionAreNoAnswer) {
  TempDir directory;
  const std::string file = directory / "answers.sqlite";
  OpenCache(1, file)->Store("a", {.value = 1, .steps = {{.end_byte = 3, .value = 1}}});
  EXPECT_FALSE(OpenCache(1, file)->Find("a", "ab").has_value());
  EXPECT_TRUE(OpenCache(1, file)->Find("a", "abc").has_value());
}

TEST(AnswerCache, AddsUpWhatWasSpentUnderAName) {
  TempDir directory;
  const std::string file = directory / "answers.sqlite";
  {
    const auto cache = OpenCache(1, file);
    cache->AddSpending("run", {.calls = 2, .tokens = 30});
    cache->AddSpending("run", {.calls = 1, .tokens = 12});
  }
  const auto cache = OpenCache(1, file);
  EXPECT_EQ(cache->FindSpending("run").calls, 3);
  EXPECT_EQ(cache->FindSpending("run").tokens, 42);
  EXPECT_EQ(cache->FindSpending("other").calls, 0);
}

TEST(AnswerCache, RefusesAFileThatIsNoCacheAndSaysWhich) {
  TempDir directory;
  ASSERT_THAT(WriteFileAtomically(directory / "text", std::string(2000, 'x')), IsOk());
  EXPECT_THAT(AnswerCache::Open({.file = directory / "text"}).status(),
              FailsWith(absl::StatusCode::kInvalidArgument, "/text: file is not a database"));
  EXPECT_THAT(AnswerCache::Open({.file = directory / "no/where"}).status(),
              FailsWith(absl::StatusCode::kUnavailable, "unable to open database file"));
}

}  // namespace
}  // namespace tandem::trainer
