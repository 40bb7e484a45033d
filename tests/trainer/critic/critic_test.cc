#include "trainer/critic/critic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "trainer/experience/packed_rows.h"

namespace tandem::trainer {
namespace {

using ::testing::ElementsAre;

const std::vector<int32_t> kPrompt = {10, 11, 12}, kFirst = {20, 21}, kSecond = {30};

// Two equal rows: the prompt at 0 to 2, a completion at 3 and 4, another at 5.
ExperienceBatch TwoRows() {
  const std::vector<GroupTokens> groups = {{.prompt = kPrompt, .completions = {kFirst, kSecond}}};
  const Microbatch micro = {.row = PackRow(groups).value(), .loss_mask = {0, 0, 0, 1, 1, 1}};
  ExperienceBatch batch = {.microbatches = {micro, micro}};
  for (const int64_t row : {0, 1}) {
    batch.completions.push_back({.microbatch = row, .begin = 3, .end = 5});
    batch.completions.push_back({.microbatch = row, .begin = 5, .end = 6});
  }
  return batch;
}

TEST(FindValuePlaces, AValueIsReadWhereItsTokenIsPredictedAndNotWhereItIsSeen) {
  const ValuePlaces places = FindValuePlaces(TwoRows(), 0);
  EXPECT_THAT(places.tokens, ElementsAre(3, 4, 5));
  EXPECT_THAT(places.hidden_at, ElementsAre(2, 3, 2)) << "both completions begin after the prompt";
  EXPECT_TRUE(places.truncated.empty());
}

TEST(FindValuePlaces, TheStateAfterATruncatedCompletionIsAtItsLastToken) {
  ExperienceBatch batch = TwoRows();
  batch.completions[1].truncated = batch.completions[2].truncated = true;
  const ValuePlaces first = FindValuePlaces(batch, 0), second = FindValuePlaces(batch, 1);
  EXPECT_THAT(first.hidden_at, ElementsAre(2, 3, 2, 5));
  EXPECT_THAT(first.truncated, ElementsAre(1));
  EXPECT_THAT(second.hidden_at, ElementsAre(2, 3, 2, 4));
  EXPECT_THAT(second.truncated, ElementsAre(2));
}

}  // namespace
}  // namespace tandem::trainer
