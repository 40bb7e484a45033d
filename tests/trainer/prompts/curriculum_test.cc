#include "trainer/prompts/curriculum.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;

std::vector<experience::v1::Prompt> Prompts(const std::vector<std::string>& rows) {
  std::vector<experience::v1::Prompt> prompts;
  for (const std::string& row : rows) {
    prompts.emplace_back().set_source_json(row);
    prompts.back().set_index(std::ssize(prompts) - 1);
  }
  return prompts;
}

std::unique_ptr<Curriculum> Make(const CurriculumOptions& options,
                                 const std::vector<experience::v1::Prompt>& prompts) {
  auto made = Curriculum::Create(options, /*seed=*/7, prompts);
  EXPECT_THAT(made, IsOk());
  return *std::move(made);
}

TEST(Curriculum, PromptsOfMiddlingSuccessComeMoreOften) {
  const auto prompts = Prompts({"{}", "{}", "{}"});
  const CurriculumOptions options = {.kind = CurriculumKind::kWeighted, .floor = 0.1};
  SuccessCounts counts(3, 1);
  counts.Add(0, 98, 0);   // weight 4 * 99 / (100 * 101) = 0.039, so the floor 0.1
  counts.Add(1, 49, 49);  // 4 * 50 * 50 / (100 * 101) = 0.990
  counts.Add(2, 0, 98);   // the floor
  std::vector<int64_t> times(3);
  for (int64_t id = 0; id < 2000; ++id) {
    ++times[static_cast<size_t>(Make(options, prompts)->Choose(id, 1, 0, counts, {})[0])];
  }
  // 0.990 / 1.190 of 2000 is 1664, with a standard deviation of 16.7.
  EXPECT_NEAR(times[1], 1664, 84);
  EXPECT_NEAR(times[0], 168, 63);
}

TEST(Curriculum, WeightedByFailurePrefersWhatFails) {
  const auto prompts = Prompts({"{}", "{}"});
  const CurriculumOptions options = {
      .kind = CurriculumKind::kWeighted, .weight = CurriculumWeight::kFailure, .floor = 0};
  SuccessCounts counts(2, 1);
  counts.Add(0, 8, 0);  // 1 - 9/10
  counts.Add(1, 0, 8);  // 1 - 1/10
  const std::vector<int64_t> chosen = Make(options, prompts)->Choose(0, 1, 0, counts, {});
  std::vector<int64_t> times(2);
  for (int64_t id = 0; id < 1000; ++id) {
    ++times[static_cast<size_t>(Make(options, prompts)->Choose(id, 1, 0, counts, {})[0])];
  }
  EXPECT_NEAR(times[1], 900, 48);
}

TEST(Curriculum, AChoiceIsAFunctionOfSeedGroupAndCounts) {
  const auto prompts = Prompts({"{}", "{}", "{}", "{}"});
  const CurriculumOptions options = {.kind = CurriculumKind::kWeighted};
  const SuccessCounts counts(4, 1);
  const auto curriculum = Make(options, prompts);
  EXPECT_EQ(curriculum->Choose(12, 2, 0, counts, {}), curriculum->Choose(12, 2, 0, counts, {}));
  const std::vector<int64_t> both = curriculum->Choose(12, 2, 0, counts, {});
  EXPECT_NE(both[0], both[1]) << "not twice in a round, where others are there";
  EXPECT_EQ(curriculum->Choose(13, 1, 0, counts, {both[0]})[0], both[1]);
}

TEST(Curriculum, EasyToHardBeginsWithTheEasiestAndReachesAll) {
  const auto prompts = Prompts({R"({"d": 3})", R"({"d": 1})", R"({"d": 2})", R"({"d": 0.5})"});
  const CurriculumOptions options = {
      .kind = CurriculumKind::kEasyToHard, .difficulty = "d", .start_share = 0.5, .ramp_steps = 10};
  EXPECT_DOUBLE_EQ(SharedPrompts(options, 0), 0.5);
  EXPECT_DOUBLE_EQ(SharedPrompts(options, 5), 0.75);
  EXPECT_DOUBLE_EQ(SharedPrompts(options, 99), 1);
  const auto curriculum = Make(options, prompts);
  const SuccessCounts counts(4, 1);
  std::set<int64_t> early, late;
  for (int64_t id = 0; id < 100; ++id) {
    early.insert(curriculum->Choose(id, 1, 0, counts, {})[0]);
    late.insert(curriculum->Choose(id, 1, 10, counts, {})[0]);
  }
  EXPECT_EQ(early, (std::set<int64_t>{1, 3}));
  EXPECT_EQ(late, (std::set<int64_t>{0, 1, 2, 3}));
}

TEST(Curriculum, ALineWithoutItsDifficultyIsNamed) {
  EXPECT_THAT(Curriculum::Create({.kind = CurriculumKind::kEasyToHard, .difficulty = "level"}, 0,
                                 Prompts({R"({"level": 1})", R"({"level": "hard"})"})),
              FailsWith(absl::StatusCode::kInvalidArgument, "line 2: no number \"level\""));
}

}  // namespace
}  // namespace tandem::trainer
