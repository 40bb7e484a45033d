#include "rollout_server/engine/schedule/stop_ids.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace tandem::rollout {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(StopIds, AreTheRequestsAndTheModelsOwnEachOnceAndRising) {
  const std::vector<int32_t> eos = {7, 2};
  const StopIds ids({.stop_token_ids = {40, 5, 40, 7, 5}}, eos, 1000);
  EXPECT_THAT(ids.rising(), ElementsAre(2, 5, 7, 40));
  EXPECT_TRUE(ids.Has(2) && ids.Has(40));
  EXPECT_FALSE(ids.Has(3) || ids.Has(999));
}

TEST(StopIds, LeaveTheModelsOwnOutWhenItsEndIsIgnored) {
  const std::vector<int32_t> eos = {2};
  EXPECT_THAT(StopIds({.stop_token_ids = {5}, .ignore_eos = true}, eos, 1000).rising(),
              ElementsAre(5));
  EXPECT_TRUE(StopIds({.ignore_eos = true}, eos, 1000).empty());
}

TEST(StopIds, GoToADeviceAsAListWhileThatIsNoLongerThanBits) {
  const StopIds two({.stop_token_ids = {63, 0}}, {}, 64);
  EXPECT_FALSE(two.is_bits());
  EXPECT_THAT(two.words(), ElementsAre(0, 63));
  const StopIds three({.stop_token_ids = {63, 0, 33}}, {}, 64);
  EXPECT_TRUE(three.is_bits());
  EXPECT_THAT(three.words(), ElementsAre(1, static_cast<int32_t>(0x80000002u)));
  EXPECT_THAT(three.rising(), ElementsAre(0, 33, 63));
}

// A quarter of a million ids that are asked for hold no more than the vocabulary has.
TEST(StopIds, HoldAtMostTheVocabularyAndAWordForEach32OfIt) {
  std::vector<int32_t> asked(kMaxStopTokenIds);
  for (size_t i = 0; i < asked.size(); ++i) asked[i] = static_cast<int32_t>(i % 999);
  const StopIds ids({.stop_token_ids = asked}, {}, 1000);
  EXPECT_EQ(ids.rising().size(), 999u);
  EXPECT_EQ(ids.words().size(), 32u);
  EXPECT_EQ(ids.num_bytes(), 4 * (999 + 32));
  EXPECT_FALSE(ids.Has(999));
}

TEST(StopIds, AreNoneByThemselves) {
  const StopIds none;
  EXPECT_TRUE(none.empty());
  EXPECT_FALSE(none.Has(0));
  EXPECT_THAT(none.words(), IsEmpty());
}

}  // namespace
}  // namespace tandem::rollout
