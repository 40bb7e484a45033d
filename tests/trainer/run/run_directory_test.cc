#include "trainer/run/run_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "common/base/exit_codes.h"
#include "nlohmann/json.hpp"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem::trainer {
namespace {

using nlohmann::json;
using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;

std::vector<json> Lines(const std::string& path) {
  std::istringstream contents(*ReadFile(path));
  std::vector<json> lines;
  for (std::string line; std::getline(contents, line);) lines.push_back(json::parse(line));
  return lines;
}

TEST(RunDirectory, RefusesANonEmptyRunWithoutResumeOrClean) {
  TempDir out;
  ASSERT_THAT(RunDirectory::Open(out.path(), "r", RunMode::kFresh), IsOk());
  EXPECT_THAT(RunDirectory::Open(out.path(), "r", RunMode::kFresh),
              FailsWith(absl::StatusCode::kAlreadyExists, "--resume"));
  EXPECT_THAT(RunDirectory::Open(out.path(), "r", RunMode::kResume), IsOk());
  EXPECT_THAT(RunDirectory::Open(out.path(), "new", RunMode::kResume),
              FailsWith(absl::StatusCode::kNotFound, "no run to resume"));
}

TEST(RunDirectory, OneProcessAtATimeWritesToARun) {
  TempDir out;
  auto first = RunDirectory::Open(out.path(), "r", RunMode::kFresh);
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT((*first)->WriteEvent(0, "run_started", ""), IsOk());
  for (const RunMode mode : {RunMode::kResume, RunMode::kClean}) {
    const absl::Status refused = RunDirectory::Open(out.path(), "r", mode).status();
    EXPECT_THAT(refused,
                FailsWith(absl::StatusCode::kAlreadyExists, "another process writes there"));
    EXPECT_EQ(ExitCodeOf(refused), ExitCode::kStorage) << "one that is tried again";
  }
  EXPECT_EQ(Lines(out / "r/events.jsonl").size(), 1u) << "nothing was deleted";
  first->reset();
  EXPECT_THAT(RunDirectory::Open(out.path(), "r", RunMode::kResume), IsOk());
}

TEST(RunDirectory, StartsBesideTheLaunchersLogs) {
  TempDir out;
  ASSERT_THAT(MakeDirectories(out / "r/logs"), IsOk());
  EXPECT_THAT(RunDirectory::Open(out.path(), "r", RunMode::kFresh), IsOk());
}

// A server, or a trainer that loads its model, may die and be started again before there is a run.
TEST(RunDirectory, StartsBesideTheLaunchersRecordOfRestartsAndKeepsIt) {
  for (const RunMode mode : {RunMode::kFresh, RunMode::kResumeOrFresh, RunMode::kClean}) {
    TempDir out;
    ASSERT_THAT(MakeDirectories(out / "r/logs"), IsOk());
    ASSERT_THAT(WriteFileAtomically(out / "r/restarts.jsonl", "{}\n"), IsOk());
    if (mode == RunMode::kClean) {
      ASSERT_THAT(WriteFileAtomically(out / "r/events.jsonl", "{}\n"), IsOk());
    }
    EXPECT_THAT(RunDirectory::Open(out.path(), "r", mode), IsOk());
    EXPECT_EQ(Lines(out / "r/restarts.jsonl").size(), 1u);
    EXPECT_TRUE(Lines(out / "r/events.jsonl").empty());
  }
}

TEST(RunDirectory, CleanDeletesARunAndNothingElse) {
  TempDir out;
  {
    auto run = RunDirectory::Open(out.path(), "r", RunMode::kFresh);
    ASSERT_THAT(run, IsOk());
    ASSERT_THAT((*run)->WriteMetrics(MetricsLine(1, 0)), IsOk());
  }
  ASSERT_THAT(RunDirectory::Open(out.path(), "r", RunMode::kClean), IsOk());
  EXPECT_TRUE(Lines(out / "r/metrics.jsonl").empty());
  ASSERT_THAT(MakeDirectories(out / "home/documents"), IsOk());
  EXPECT_THAT(RunDirectory::Open(out.path(), "home", RunMode::kClean),
              FailsWith(absl::StatusCode::kInvalidArgument, "does not look like a run"));
  EXPECT_TRUE(std::filesystem::exists(out / "home/documents"));
}

TEST(RunDirectory, WritesMetricsAsOneFlatObject) {
  TempDir out;
  auto run = RunDirectory::Open(out.path(), "r", RunMode::kFresh);
  ASSERT_THAT(run, IsOk());
  MetricsLine line(3, 1.5);
  line.Add("reward/mean", 1.0 / 3);
  line.Add("drift/k1", std::numeric_limits<double>::quiet_NaN());
  line.AddCount("push/bytes", 269030016);
  line.AddArray("correction/hist_raw", std::vector<int64_t>{1, 2});
  line.AddObject("staleness/histogram", {{0, 5}, {2, 1}});
  ASSERT_THAT((*run)->WriteMetrics(line), IsOk());
  EXPECT_EQ(*ReadFile(out / "r/metrics.jsonl"),
            "{\"step\":3,\"time_s\":1.5,\"reward/mean\":0.333333333,\"drift/k1\":null,"
            "\"push/bytes\":269030016,\"correction/hist_raw\":[1,2],"
            "\"staleness/histogram\":{\"0\":5,\"2\":1}}\n");
}

experience::v1::ScoredGroup Group() {
  experience::v1::ScoredGroup group;
  group.set_group_id(9);
  group.set_server("host:1");
  group.mutable_prompt()->set_index(4);
  group.mutable_prompt()->set_text("2+2?");
  group.mutable_prompt()->set_answer("4");
  auto* const member = group.add_completions();
  member->set_reward(1);
  member->set_advantage(0.5f);
  auto* const completion = member->mutable_completion();
  completion->set_text("\"4\xff");
  completion->add_token_ids(7);
  completion->add_behaviour_logprobs(-0.25f);
  completion->add_raw_logprobs(-0.25f);
  completion->add_entropies(0.5f);
  completion->set_finish_reason(rollout::v1::FINISH_REASON_STOP);
  auto* const span = completion->add_version_spans();
  span->set_weight_version(2);
  span->set_num_tokens(1);
  return group;
}

TEST(RunDirectory, ResumeOrFreshGoesOnOnlyWhereThereIsARun) {
  TempDir out;
  EXPECT_EQ(RunDirectory::Decide(out.path(), "r", RunMode::kResumeOrFresh), RunMode::kFresh);
  {
    auto run = RunDirectory::Open(out.path(), "r", RunMode::kResumeOrFresh);
    ASSERT_THAT(run, IsOk());
    ASSERT_THAT((*run)->WriteEvent(1, "eval", "m"), IsOk());
  }
  EXPECT_EQ(RunDirectory::Decide(out.path(), "r", RunMode::kResumeOrFresh), RunMode::kResume);
  ASSERT_THAT(RunDirectory::Open(out.path(), "r", RunMode::kResumeOrFresh), IsOk());
  EXPECT_EQ(Lines(out / "r/events.jsonl").size(), 1u);
  // A process that died while it made its folders left nothing to go on with, and nothing in the
  // way.
  ASSERT_THAT(MakeDirectories(out / "dead/checkpoints"), IsOk());
  EXPECT_EQ(RunDirectory::Decide(out.path(), "dead", RunMode::kResumeOrFresh), RunMode::kFresh);
  EXPECT_THAT(RunDirectory::Open(out.path(), "dead", RunMode::kResumeOrFresh), IsOk());
}

TEST(RunDirectory, WritesRolloutsWithEveryFieldOfTheSchema) {
  TempDir out;
  auto run = RunDirectory::Open(out.path(), "r", RunMode::kFresh);
  ASSERT_THAT(run, IsOk());
  experience::v1::ScoredGroup equal = Group();
  equal.set_group_id(8);
  ASSERT_THAT(
      (*run)->WriteRollouts(
          3, {.groups = {Group()}, .dropped = {{8, kZeroVariance, "", equal}, {7, "failed"}}},
          {{9, {{-0.3f}}}}, [](int32_t id) { return "t" + std::to_string(id); }),
      IsOk());
  const auto groups = Lines(out / "r/rollouts/step_3.jsonl");
  ASSERT_EQ(groups.size(), 2u) << "of the failed one nothing came";
  const json group = groups[0];
  EXPECT_EQ(group["drop_reason"], "");
  EXPECT_EQ(groups[1]["group_id"], 8);
  EXPECT_EQ(groups[1]["drop_reason"], "zero_variance");
  EXPECT_EQ(groups[1]["completions"][0]["proximal_logprobs"], json::array());
  EXPECT_EQ(group["group_id"], 9);
  EXPECT_EQ(group["prompt_index"], 4);
  EXPECT_EQ(group["server"], "host:1");
  EXPECT_EQ(group["zero_variance"], false);
  const json completion = group["completions"][0];
  EXPECT_EQ(completion["text"], "\"4\xef\xbf\xbd");
  EXPECT_EQ(completion["tokens"], json({"t7"}));
  EXPECT_EQ(completion["behaviour_logprobs"], json({-0.25}));
  EXPECT_EQ(completion["proximal_logprobs"], json({-0.300000012}));
  EXPECT_EQ(completion["versions"], json::parse("[[2,1]]"));
  EXPECT_EQ(completion["advantage"], 0.5);
  EXPECT_EQ(completion["masked"], false);
  EXPECT_EQ(completion["finish_reason"], "stop");
}

TEST(RunDirectory, AResumedRunForgetsWhatCameAfterItsCheckpoint) {
  TempDir out;
  {
    auto run = RunDirectory::Open(out.path(), "r", RunMode::kFresh);
    ASSERT_THAT(run, IsOk());
    for (const int64_t step : {1, 2, 3}) {
      ASSERT_THAT((*run)->WriteMetrics(MetricsLine(step, 10.0 * static_cast<double>(step))),
                  IsOk());
      ASSERT_THAT((*run)->WriteEvent(step, "eval", "m"), IsOk());
      ASSERT_THAT(
          (*run)->WriteRollouts(step, {.groups = {Group()}}, {}, [](int32_t) { return ""; }),
          IsOk());
    }
    auto cut = AppendFile::Open(out / "r/metrics.jsonl");
    ASSERT_THAT((*cut)->Append("{\"step\":4,\"ti"), IsOk());  // the crash came here
  }
  auto run = RunDirectory::Open(out.path(), "r", RunMode::kResume);
  ASSERT_THAT(run, IsOk());
  ASSERT_THAT((*run)->CutAfter(2), IsOk());
  EXPECT_GE((*run)->ElapsedSeconds(), 20);
  ASSERT_THAT((*run)->WriteMetrics(MetricsLine(3, 31)), IsOk());
  const auto lines = Lines(out / "r/metrics.jsonl");
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[2]["time_s"], 31);
  EXPECT_EQ(Lines(out / "r/events.jsonl").size(), 2u);
  EXPECT_TRUE(std::filesystem::exists(out / "r/rollouts/step_2.jsonl"));
  EXPECT_FALSE(std::filesystem::exists(out / "r/rollouts/step_3.jsonl"));
}

}  // namespace
}  // namespace tandem::trainer
