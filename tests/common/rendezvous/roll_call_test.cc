#include "common/rendezvous/roll_call.h"

#include <gtest/gtest.h>

namespace tandem::comm {
namespace {

const std::vector<std::string> kMembers = {"a:1", "b:2", "c:3"};

MemberState At(int64_t beat, int64_t sequence, bool inside) {
  return {.known = true, .beat = beat, .sequence = sequence, .inside = inside};
}

std::string Named(const std::vector<MemberState>& first, const std::vector<MemberState>& second) {
  return NameCulprits(kMembers, first, second, 0, 12);
}

TEST(NameCulpritsTest, ABeatThatStandsStillIsSilence) {
  EXPECT_EQ(Named({At(5, 12, true), At(7, 11, true), At(4, 12, true)},
                  {At(8, 12, true), At(7, 11, true), At(7, 12, true)}),
            "rank 1 (b:2) is silent: dead, stopped or cut off; it was last in collective 11");
}

TEST(NameCulpritsTest, ASilentMemberIsToBlameBeforeOneThatLags) {
  EXPECT_EQ(
      Named({At(5, 12, true), At(7, 11, false), At(4, 11, false)},
            {At(8, 12, true), At(9, 11, false), At(4, 11, false)}),
      "rank 2 (c:3) is silent: dead, stopped or cut off; it was last seen after collective 11");
}

TEST(NameCulpritsTest, AMovingBeatBehindTheOthersIsALag) {
  EXPECT_EQ(Named({At(5, 12, true), At(7, 10, true), At(4, 11, false)},
                  {At(8, 12, true), At(9, 10, true), At(6, 11, false)}),
            "rank 1 (b:2) lags: it is in collective 10; rank 2 (c:3) lags: it is between "
            "collectives 11 and 12");
}

TEST(NameCulpritsTest, WhoNeverSaidAWordIsSilent) {
  EXPECT_EQ(Named({At(5, 12, true), At(7, 12, true), {}}, {At(8, 12, true), At(9, 12, true), {}}),
            "rank 2 (c:3) is silent: dead, stopped or cut off; it never was in one");
}

TEST(NameCulpritsTest, NobodyIsToBlameWhereAllAreInItOrPastIt) {
  EXPECT_EQ(Named({At(5, 12, true), At(7, 12, true), At(7, 12, false)},
                  {At(8, 12, true), At(9, 12, true), At(9, 13, true)}),
            "all members are alive and in it, or past it");
}

TEST(NameCulpritsTest, WhoAsksDoesNotBlameItself) {
  EXPECT_EQ(Named({At(5, 11, true), At(7, 12, true), At(7, 12, true)},
                  {At(5, 11, true), At(9, 12, true), At(9, 12, true)}),
            "all members are alive and in it, or past it");
}

}  // namespace
}  // namespace tandem::comm
