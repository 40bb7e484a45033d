#include "trainer/drift/step_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/scored_groups.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::AddCompletion;
using ::tandem::testing::GroupWithPrompt;
using ::tandem::testing::ScoredGroup;
using ::testing::ElementsAre;

// One completion of four tokens, two by version 3 and two by version 5; behaviour log-probs are -1.
std::vector<ScoredGroup> SplitGroups() {
  std::vector<ScoredGroup> groups = {GroupWithPrompt(1, {9}), GroupWithPrompt(2, {9})};
  auto* completion = AddCompletion(groups[0], {1, 2, 3, 4}, 1)->mutable_completion();
  completion->clear_version_spans();
  for (const int64_t version : {3, 5}) {
    auto* const span = completion->add_version_spans();
    span->set_weight_version(version);
    span->set_num_tokens(2);
  }
  AddCompletion(groups[1], {5}, 1)
      ->mutable_completion()
      ->mutable_version_spans(0)
      ->set_weight_version(5);
  return groups;
}

double Mean(const offpolicy::AdditiveSplit& split, offpolicy::SplitPart part) {
  return split.parts[static_cast<size_t>(part)].mean.value;
}

TEST(StepSplit, TakesEachTokenUnderTheVersionThatDrewIt) {
  const auto groups = SplitGroups();
  StepSplit split(groups, 5, /*server_casts=*/true);
  EXPECT_THAT(split.versions(), ElementsAre(3, 5));
  EXPECT_THAT(split.GroupsOf(3), ElementsAre(0));
  EXPECT_THAT(split.GroupsOf(5), ElementsAre(0, 1));
  const GroupLogprobs proximal = {{{-3, -3, -3, -3}}, {{-3}}};
  split.Take(StepSplit::kEngine, 3, {0}, {{{-1.25f, -1.25f, 99, 99}}});
  split.Take(StepSplit::kEngine, 5, {0, 1}, {{{99, 99, -1.5f, -1.5f}}, {{-1.5f}}});
  split.Take(StepSplit::kCast, 3, {0}, {{{-1.5f, -1.5f, 99, 99}}});
  split.Take(StepSplit::kCast, 5, {0, 1}, {{{99, 99, -2, -2}}, {{-2}}});
  split.Take(StepSplit::kMasters, 3, {0}, {{{-2, -2, 99, 99}}});
  const auto joined = split.Join({{1, proximal[0]}, {2, proximal[1]}});
  EXPECT_EQ(joined.num_tokens, 5);
  EXPECT_EQ(joined.num_missing, 0);
  // By token: version 3 twice, version 5 three times.
  EXPECT_NEAR(Mean(joined, offpolicy::SplitPart::kRecord), (2 * -0.25 + 3 * -0.5) / 5, 1e-12);
  EXPECT_NEAR(Mean(joined, offpolicy::SplitPart::kEngine), (2 * -0.25 + 3 * -0.5) / 5, 1e-12);
  EXPECT_NEAR(Mean(joined, offpolicy::SplitPart::kCast), (2 * -0.5 + 3 * -1.0) / 5, 1e-12);
  EXPECT_NEAR(Mean(joined, offpolicy::SplitPart::kStaleness), 2 * -1.0 / 5, 1e-12);
}

TEST(StepSplit, PartsAddUpToTheDriftOfTheStep) {
  const auto groups = SplitGroups();
  StepSplit split(groups, 5, true);
  split.Take(StepSplit::kEngine, 3, {0}, {{{-1.1f, -0.93f, 0, 0}}});
  split.Take(StepSplit::kEngine, 5, {0, 1}, {{{0, 0, -1.7f, -2.3f}}, {{-0.31f}}});
  split.Take(StepSplit::kCast, 3, {0}, {{{-1.3f, -0.17f, 0, 0}}});
  split.Take(StepSplit::kCast, 5, {0, 1}, {{{0, 0, -1.9f, -2.1f}}, {{-0.71f}}});
  split.Take(StepSplit::kMasters, 3, {0}, {{{-1.33f, -0.19f, 0, 0}}});
  const std::vector<float> proximal = {-1.01f, -0.77f, -2.03f, -1.09f};
  const auto joined = split.Join({{1, {proximal}}, {2, {{-0.5f}}}});
  double sum = 0, delta = -0.5f + 1.0;
  for (const auto& part : joined.parts) sum += part.mean.value;
  for (const float p : proximal) delta += static_cast<double>(p) + 1;
  EXPECT_NEAR(sum, delta / 5, 1e-12);
  EXPECT_NEAR(joined.mean_delta.value, delta / 5, 1e-12);
  MetricsLine line(1, 0);
  AddSplit(joined, &line);
  EXPECT_EQ(line.Get("drift/split/tokens"), 5);
  EXPECT_EQ(line.Get("drift/split/mean_delta"), joined.mean_delta.value);
  EXPECT_EQ(line.Get("drift/split/staleness_mean"), Mean(joined, offpolicy::SplitPart::kStaleness));
}

TEST(StepSplit, TokensWhoseServerHasMovedOnAreCountedAsMissing) {
  const auto groups = SplitGroups();
  StepSplit split(groups, 5, /*server_casts=*/false);
  split.Take(StepSplit::kEngine, 5, {0, 1}, {{{-1.5f, -1.5f, -1.5f, -1.5f}}, {{-1.5f}}});
  const auto joined = split.Join({{1, {{-3, -3, -3, -3}}}, {2, {{-3}}}});
  EXPECT_EQ(joined.num_tokens, 3);
  EXPECT_EQ(joined.num_missing, 2);
  EXPECT_EQ(Mean(joined, offpolicy::SplitPart::kCast), 0) << "fp32 servers have the masters";
  EXPECT_EQ(Mean(joined, offpolicy::SplitPart::kStaleness), 0);
  EXPECT_EQ(Mean(joined, offpolicy::SplitPart::kEngine), -1.5);
}

TEST(StepSplit, MaskedCompletionsAreNoDrift) {
  auto groups = SplitGroups();
  groups[0].mutable_completions(0)->set_masked(true);
  StepSplit split(groups, 5, false);
  EXPECT_THAT(split.versions(), ElementsAre(5));
  split.Take(StepSplit::kEngine, 5, {1}, {{{-2}}});
  const auto joined = split.Join({{2, {{-4}}}});
  EXPECT_EQ(joined.num_tokens, 1);
  EXPECT_EQ(joined.num_missing, 0);
}

}  // namespace
}  // namespace tandem::trainer
