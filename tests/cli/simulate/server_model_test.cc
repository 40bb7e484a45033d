#include "cli/simulate/server_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace tandem::simulate {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// 0.1 s a step, however many decode together.
ServerSpeed Plain() { return {.knots = {{1, 0.1}}}; }

struct Ended {
  double at = 0;
  int64_t group = 0;
  bool operator==(const Ended&) const = default;
};
void PrintTo(const Ended& e, std::ostream* out) { *out << "group " << e.group << " at " << e.at; }

// Works until the server is idle; times to a millionth of a second.
std::vector<Ended> RunOut(ServerModel& server) {
  std::vector<Ended> ended;
  double now = 0;
  while (server.busy()) {
    const double seconds = server.SecondsToEvent();
    now += seconds;
    for (const GroupWork& work : server.Advance(seconds)) {
      ended.push_back({std::round(now * 1e6) / 1e6, work.group});
    }
  }
  return ended;
}

TEST(ServerSpeed, StepsLieOnStraightLinesBetweenAndBeyondWhatWasMeasured) {
  const ServerSpeed speed{.knots = {{1, 0.1}, {5, 0.3}, {9, 0.4}}};
  EXPECT_DOUBLE_EQ(speed.StepSeconds(1), 0.1);
  EXPECT_DOUBLE_EQ(speed.StepSeconds(3), 0.2);
  EXPECT_DOUBLE_EQ(speed.StepSeconds(7), 0.35);
  EXPECT_DOUBLE_EQ(speed.StepSeconds(13), 0.5);
}

TEST(ServerModel, ACompletionOfNTokensTakesItsPromptAndNLessOneSteps) {
  ServerSpeed speed = Plain();
  speed.prefill_tokens_per_second = 100;
  ServerModel server(speed);
  server.Submit({.group = 7, .prompt_tokens = 50, .lengths = {11}});
  EXPECT_DOUBLE_EQ(server.SecondsToEvent(), 0.5);
  EXPECT_THAT(RunOut(server), ElementsAre(Ended{1.5, 7}));  // 50 / 100 + 10 steps of 0.1
  EXPECT_DOUBLE_EQ(server.busy_seconds(), 1.5);
  EXPECT_DOUBLE_EQ(server.prefill_seconds(), 0.5);
  EXPECT_EQ(server.groups_in_flight(), 0);
}

TEST(ServerModel, AGroupEndsWithItsLongestMember) {
  ServerModel server(Plain());
  server.Submit({.group = 1, .lengths = {3, 21}});
  server.Submit({.group = 2, .lengths = {11}});
  EXPECT_THAT(RunOut(server), ElementsAre(Ended{1, 2}, Ended{2, 1}));
  // 3 decode for 2 steps, 2 for 8 more, 1 for the last 10: 6 + 16 + 10 tokens in 20 steps.
  EXPECT_NEAR(server.decoded_tokens(), 32, 1e-9);
  EXPECT_NEAR(server.mean_batch(), 1.6, 1e-9);
}

TEST(ServerModel, StepsGetSlowerWithTheBatchAndFasterAsMembersEnd) {
  ServerModel server({.knots = {{1, 0.1}, {2, 0.15}}});
  server.Submit({.group = 1, .lengths = {11, 21}});
  EXPECT_THAT(RunOut(server), ElementsAre(Ended{2.5, 1}));  // 10 x 0.15 + 10 x 0.1
}

TEST(ServerModel, KvThatIsReadGrowsWithEveryToken) {
  ServerModel server({.knots = {{1, 0.0}}, .seconds_per_context_token = 0.01});
  server.Submit({.group = 1, .prompt_tokens = 9, .lengths = {11}});
  // Ten steps over 10, 11, ... tokens, continuously: 0.01 (10 x 10 + 10^2 / 2).
  EXPECT_THAT(RunOut(server), ElementsAre(Ended{1.5, 1}));
}

TEST(ServerModel, APromptIsReadOnceForItsGroup) {
  ServerModel server({.knots = {{1, 0.0}}, .seconds_per_context_token = 0.01});
  server.Submit({.group = 1, .prompt_tokens = 8, .lengths = {11, 11}});
  // 8 + 2 tokens, two more a step: 0.01 (10 x 10 + 2 x 10^2 / 2).
  EXPECT_THAT(RunOut(server), ElementsAre(Ended{2, 1}));
}

TEST(ServerModel, AGroupWaitsUntilItsMembersFit) {
  ServerSpeed speed = Plain();
  speed.max_sequences = 3;
  ServerModel server(speed);
  server.Submit({.group = 1, .lengths = {11, 31}});
  server.SetVersion(4);
  server.Submit({.group = 2, .lengths = {11, 11}});
  // The second needs two places, and has them when the first group's first member ends.
  std::vector<GroupWork> ended = server.Advance(server.SecondsToEvent());
  EXPECT_THAT(ended, IsEmpty());
  ended = server.Advance(server.SecondsToEvent());
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].group, 2);
  EXPECT_EQ(ended[0].version, 4);
  EXPECT_NEAR(server.busy_seconds(), 2, 1e-9);
}

TEST(ServerModel, AGroupWaitsForRoomInTheKvCache) {
  ServerSpeed speed = Plain();
  speed.kv_tokens = 40;
  ServerModel server(speed);
  server.Submit({.group = 1, .prompt_tokens = 10, .lengths = {11}});
  server.Submit({.group = 2, .prompt_tokens = 10, .lengths = {11}});
  EXPECT_THAT(RunOut(server), ElementsAre(Ended{1, 1}, Ended{2, 2}));  // 42 tokens do not fit
}

TEST(ServerModel, APauseDelaysWhatRunsAndNothingElse) {
  ServerModel server(Plain());
  server.Stall(5);
  EXPECT_FALSE(server.busy());
  server.Submit({.group = 1, .lengths = {11}});
  server.Advance(0.5);
  server.Stall(0.25);
  EXPECT_THAT(RunOut(server), ElementsAre(Ended{0.75, 1}));
}

TEST(ServerModel, ALostServerGivesBackWhatItHad) {
  ServerSpeed speed = Plain();
  speed.max_sequences = 1;
  ServerModel server(speed);
  server.Submit({.group = 3, .lengths = {11}});
  server.Submit({.group = 4, .lengths = {12}});
  server.Advance(0.5);
  const std::vector<GroupWork> lost = server.Lose();
  ASSERT_EQ(lost.size(), 2u);
  EXPECT_THAT(lost[0].lengths, ElementsAre(11));
  EXPECT_THAT(lost[1].lengths, ElementsAre(12));
  EXPECT_FALSE(server.busy());
}

}  // namespace
}  // namespace tandem::simulate
