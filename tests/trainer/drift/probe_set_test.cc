#include "trainer/drift/probe_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/files/file_system.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/trainer/scored_groups.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::AddCompletion;
using ::tandem::testing::FailsWith;
using ::tandem::testing::GroupWithPrompt;
using ::tandem::testing::IsOk;
using ::tandem::testing::ScoredGroup;
using ::tandem::testing::TempDir;
using ::testing::ElementsAre;

std::vector<ScoredGroup> ProbeGroups() {
  std::vector<ScoredGroup> groups = {GroupWithPrompt(7, {1, 2}), GroupWithPrompt(8, {3})};
  AddCompletion(groups[0], {10, 11}, 1)->set_masked(true);
  AddCompletion(groups[0], {12}, 1);
  AddCompletion(groups[0], {13, 14, 15}, 1);
  AddCompletion(groups[1], {20, 21}, 1);
  AddCompletion(groups[1], {22}, 1);
  return groups;
}

std::vector<int> FirstIds(const ProbeSet& set) {
  std::vector<int> ids;
  for (const ScoredGroup& group : set.groups) {
    for (const auto& member : group.completions()) ids.push_back(member.completion().token_ids(0));
  }
  return ids;
}

TEST(ProbeSet, TakesTrainedCompletionsOfEveryGroupInTurn) {
  EXPECT_THAT(FirstIds(ChooseProbeSet(ProbeGroups(), 1)), ElementsAre(20)) << "10 is masked";
  EXPECT_THAT(FirstIds(ChooseProbeSet(ProbeGroups(), 3)), ElementsAre(12, 20, 22));
  const ProbeSet all = ChooseProbeSet(ProbeGroups(), 100);
  EXPECT_THAT(FirstIds(all), ElementsAre(12, 13, 20, 22));
  EXPECT_EQ(all.num_completions(), 4);
  EXPECT_THAT(all.CompletionOfTokens(), ElementsAre(0, 1, 1, 1, 2, 2, 3));
}

TEST(ProbeSet, IsReadAsItWasWritten) {
  const TempDir directory;
  const ProbeSet set = ChooseProbeSet(ProbeGroups(), 100);
  ASSERT_THAT(WriteProbeSet(directory / "set.jsonl", set), IsOk());
  const auto read = ReadProbeSet(directory / "set.jsonl");
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->digest, set.digest);
  EXPECT_EQ(FirstIds(*read), FirstIds(set));
  EXPECT_EQ(read->groups.size(), 2u);
}

TEST(ProbeSet, OneThatWasChangedIsRefused) {
  const TempDir directory;
  ASSERT_THAT(WriteProbeSet(directory / "set.jsonl", ChooseProbeSet(ProbeGroups(), 100)), IsOk());
  std::string text = *ReadFile(directory / "set.jsonl");
  const size_t at = text.find("22");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, 2, "23");
  ASSERT_THAT(WriteFileAtomically(directory / "set.jsonl", text), IsOk());
  EXPECT_THAT(ReadProbeSet(directory / "set.jsonl"),
              FailsWith(absl::StatusCode::kDataLoss, "changed or cut short"));
}

TEST(ProbeSet, AFileByHandNeedsNoDigestAndMistakesAreNamed) {
  const TempDir directory;
  const auto read = [&](const std::string& text) {
    EXPECT_THAT(WriteFileAtomically(directory / "p", text), IsOk());
    return ReadProbeSet(directory / "p");
  };
  EXPECT_THAT(read("{\"prompt_token_ids\":[1],\"completion_token_ids\":[2,3]}\n"), IsOk());
  EXPECT_THAT(read("{\"prompt_token_ids\":[1],\"completion_token_ids\":[]}\n"),
              FailsWith(absl::StatusCode::kInvalidArgument, ":1: completion_token_ids"));
  EXPECT_THAT(read("{\"prompt_token_ids\":[1]"),
              FailsWith(absl::StatusCode::kInvalidArgument, "JSON"));
  EXPECT_THAT(read("{\"prompt_token_ids\":[-1],\"completion_token_ids\":[2]}\n"),
              FailsWith(absl::StatusCode::kInvalidArgument, "prompt_token_ids"));
  EXPECT_THAT(read(""), FailsWith(absl::StatusCode::kInvalidArgument, "no completions"));
  EXPECT_THAT(ReadProbeSet(directory / "absent"), FailsWith(absl::StatusCode::kNotFound, "absent"));
}

TEST(ProbeSet, IdsAndLengthsMustFitTheModel) {
  const ProbeSet set = ChooseProbeSet(ProbeGroups(), 100);
  EXPECT_THAT(CheckProbeSet(set, "p", 23, 5), IsOk());
  EXPECT_THAT(CheckProbeSet(set, "p", 22, 5),
              FailsWith(absl::StatusCode::kInvalidArgument, "completion 4 has id 22"));
  EXPECT_THAT(CheckProbeSet(set, "p", 23, 4),
              FailsWith(absl::StatusCode::kInvalidArgument, "completion 2 has 5 tokens"));
}

}  // namespace
}  // namespace tandem::trainer
