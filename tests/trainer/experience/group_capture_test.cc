#include "trainer/experience/group_capture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/trainer/scored_groups.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::AddCompletion;
using ::tandem::testing::CutIntoTurns;
using ::tandem::testing::GroupWithPrompt;
using ::tandem::testing::ScoredGroup;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(GroupCapture, HasTheRewardOfEachTokenWhereOneCameForAStep) {
  std::vector<ScoredGroup> groups = {GroupWithPrompt(3, {1, 2})};
  AddCompletion(groups[0], {5, 6}, 0.5f)->set_reward(1);
  AddCompletion(groups[0], {7, 8, 9}, -0.5f)->set_reward(0.75);
  EXPECT_THAT(CaptureGroups(groups, {}).token_rewards, IsEmpty());
  auto* const second = groups[0].mutable_completions(1);
  for (const double reward : {0.25, 0.0, 0.5}) second->add_token_rewards(reward);
  const offpolicy::Capture capture = CaptureGroups(groups, {});
  EXPECT_THAT(capture.token_rewards, ElementsAre(0, 1, 0.25, 0, 0.5));
  EXPECT_THAT(capture.advantages, ElementsAre(0.5f, 0.5f, -0.5f, -0.5f, -0.5f));
}

TEST(GroupCapture, SaysWhichTurnDrewEachToken) {
  std::vector<ScoredGroup> groups = {GroupWithPrompt(3, {1, 2})};
  AddCompletion(groups[0], {5, 6}, 1);
  EXPECT_THAT(CaptureGroups(groups, {}).turn, IsEmpty()) << "of one turn";
  auto* const completion =
      CutIntoTurns(AddCompletion(groups[0], {7, 8, 9, 10}, 1), {1, 2, 1})->mutable_completion();
  completion->mutable_version_spans(0)->set_weight_version(4);
  completion->mutable_version_spans(0)->set_num_tokens(1);
  completion->add_version_spans()->set_weight_version(6);
  completion->mutable_version_spans(1)->set_num_tokens(1);
  const offpolicy::Capture capture = CaptureGroups(groups, {});
  EXPECT_THAT(capture.turn, ElementsAre(1, 1, 1, 0, 0, 2));
  EXPECT_THAT(capture.weight_version, ElementsAre(0, 0, 4, 6, 6, 6));
  const offpolicy::CaptureRecord record = MakeCaptureRecord(capture);
  EXPECT_THAT(record.mask, ElementsAre(1, 1, 1, 0, 0, 1));
  EXPECT_THAT(record.position, ElementsAre(0, 1, 0, 1, 1, 1));
  EXPECT_THAT(record.length, ElementsAre(2, 2)) << "drawn tokens";
}

}  // namespace
}  // namespace tandem::trainer
