// What a run records and measures beside its steps, against a scripted server with a learner that
// only counts: no LibTorch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "common/capture/capture.h"
#include "tests/trainer/trainer_fixture.h"
#include "trainer/prompts/group_request.h"
#include "trainer/run/evaluation.h"

namespace tandem::trainer {
namespace {

using nlohmann::json;
using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;

TEST_F(TrainerTest, TheRunCardSaysWhereTheWeightsComeFrom) {
  options_.steps = 1;
  ASSERT_THAT(Run(), IsOk());
  EXPECT_EQ(json::parse(*ReadFile(directory_ / "r/run.json"))["model"]["source"], "");
  EXPECT_THAT(WriteFileAtomically(model_ + "/SOURCE.txt", "de-quantised from 4 bits\n"), IsOk());
  ASSERT_THAT(Run(RunMode::kClean), IsOk());
  EXPECT_EQ(json::parse(*ReadFile(directory_ / "r/run.json"))["model"]["source"],
            "de-quantised from 4 bits");
}

// The reference policy is not in the checkpoint: it is read from trainer.model again.
TEST_F(TrainerTest, AResumeWithOtherStartingWeightsIsRefused) {
  options_.checkpoint.every = 1;
  ASSERT_THAT(Run(), IsOk());
  options_.steps = 4;
  start_digest_ = "another";
  EXPECT_THAT(Run(RunMode::kResume),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        "was made with another set of starting weights, which are the reference "
                        "policy, (digest the model's, now another)"));
  start_digest_ = "the model's";
  EXPECT_THAT(Run(RunMode::kResume), IsOk());
}

// A step without new weights has no number of its own: the next train step makes the version that
// it would have made. Group 0 is dropped and group 1 trained on without a finite loss, then groups
// 2 and 3 as well; groups 4 and 5 make version 1.
TEST_F(TrainerTest, SkippedStepsAreCountedInTheLineOfTheTrainStepThatFollows) {
  options_.steps = 2;
  options_.advantage.drop_zero_variance = true;
  skip_first_ = 2;
  server_->set_sample(
      [](const rollout::v1::GenerateGroupRequest& request, rollout::v1::Completion* completion) {
        const bool right = request.group_id() > 0 && completion->index() == 0;
        completion->set_text(right ? "0" : "7");
        completion->add_token_ids(1);
      });
  ASSERT_THAT(Run(), IsOk());
  ASSERT_EQ(trained_, (std::vector<std::vector<int64_t>>{{4, 5}, {6, 7}}));
  const auto lines = Lines("metrics.jsonl");
  ASSERT_EQ(lines.size(), 2u) << "a second line of step 1 would be another number for its version";
  EXPECT_EQ(lines[0]["step"], 1);
  EXPECT_EQ(lines[0]["skipped/steps"], 2);
  EXPECT_EQ(lines[0]["drops/group_zero_variance"], 1);
  EXPECT_EQ(lines[0]["drops/group_step_skipped"], 3);
  EXPECT_EQ(lines[1]["skipped/steps"], 0);
  EXPECT_FALSE(lines[1].contains("drops/group_step_skipped"));
  EXPECT_FALSE(lines[1].contains("drops/group_zero_variance"));
}

// As with a KL in the reward, which the learner charges: the numbers of the server's group are then
// not those of the loss.
TEST_F(TrainerTest, RecordsTheAdvantagesThatTheLossHadAndNotThoseFromBefore) {
  advantages_ = {0.5f, 0.5f, 0.25f, 0.25f};
  options_.capture.every = 1;
  options_.steps = 1;
  ASSERT_THAT(Run(), IsOk());
  const auto capture = offpolicy::ReadCapture(directory_ / "r/captures/step_1");
  ASSERT_THAT(capture, IsOk());
  ASSERT_EQ(capture->num_tokens(), 16);
  for (size_t t = 0; t < 16; ++t) EXPECT_EQ(capture->advantages[t], advantages_[t % 4]) << t;
  for (const json& group : Lines("rollouts/step_1.jsonl")) {
    for (const json& completion : group["completions"]) EXPECT_EQ(completion["advantage"], 0.375);
  }
  const json line = Lines("metrics.jsonl")[0];
  EXPECT_EQ(line["advantage/mean"], 0.375);
  EXPECT_EQ(line["advantage/var"], 0);
}

TEST_F(TrainerTest, SamplesOfAnEvaluationAreDrawnAsInTrainingAndGreedyOnesWithoutFilters) {
  options_.data.eval = options_.data.train;
  options_.eval.pass_at_k = 2;
  options_.eval.at_end = false;
  options_.steps = 1;
  options_.sampling = {
      .temperature = 0.7, .max_new_tokens = 8, .top_k = 20, .top_p = 0.9, .min_p = 0.05};
  options_.eval.max_new_tokens = 5;
  ASSERT_THAT(Run(), IsOk());
  int greedy = 0, sampled = 0;
  for (const auto& request : server_->requests()) {
    if (!IsEvaluationGroup(request.group_id())) continue;
    const auto& sampling = request.sampling();
    const bool is_greedy = sampling.temperature() == 0;
    ++(is_greedy ? greedy : sampled);
    EXPECT_EQ(sampling.max_new_tokens(), 5);
    EXPECT_EQ(sampling.top_k(), is_greedy ? 0 : 20);
    EXPECT_EQ(sampling.top_p(), is_greedy ? 0 : 0.9f);
    EXPECT_EQ(sampling.min_p(), is_greedy ? 0 : 0.05f);
    EXPECT_EQ(sampling.temperature(), is_greedy ? 0 : 0.7f);
  }
  EXPECT_EQ(greedy, 3);
  EXPECT_EQ(sampled, 3);
}

TEST_F(TrainerTest, PromptsThatAnEvaluationLeavesOutAreCounted) {
  EXPECT_THAT(WriteFileAtomically(directory_ / "e.jsonl",
                                  "{\"prompt\":\"a\",\"answer\":\"0\"}\n"
                                  "{\"prompt\":\"b\",\"answer\":\"none\"}\n"
                                  "{\"prompt\":\"" +
                                      std::string(200, '7') + "\",\"answer\":\"0\"}\n"),
              IsOk());
  options_.data.eval = directory_ / "e.jsonl";
  options_.data.over_length = OverLength::kDrop;
  options_.data.max_prompt_tokens = 60;
  options_.eval.at_end = false;
  options_.steps = 1;
  ASSERT_THAT(Run(), IsOk());
  const json line = Lines("metrics.jsonl")[0];
  EXPECT_EQ(line["eval/num_prompts"], 1);
  EXPECT_EQ(line["eval/num_failed"], 1) << "an answer without a number has no reward";
  EXPECT_EQ(line["eval/num_too_long"], 1);
  EXPECT_EQ(line["eval/greedy_share_correct"], 1);
  bool told = false;
  for (const json& event : Lines("events.jsonl")) {
    told |= event["kind"] == "eval" &&
            event["message"] ==
                "greedy: 1 of 1 held-out prompts correct, left out: 1 that failed, "
                "1 over data.max_prompt_tokens";
  }
  EXPECT_TRUE(told);
}

TEST_F(TrainerTest, ALongAnswerThatIsRightIsCorrectThoughItsRewardIsSmall) {
  options_.data.eval = options_.data.train;
  options_.eval.at_end = false;
  options_.steps = 1;
  options_.reward.weights = {{"number_answer", 1}, {"length_penalty", 0.5}};
  options_.reward.length_hard_tokens = 2;
  ASSERT_THAT(Run(), IsOk());
  const json line = Lines("metrics.jsonl")[0];
  EXPECT_EQ(line["eval/greedy"], 0.5);
  EXPECT_EQ(line["eval/greedy_share_correct"], 1);
}

// Steps that measure the additive split, of groups whose ids are their completions' tokens.
class ReplayTest : public TrainerTest {
 protected:
  ReplayTest() {
    options_.completions_per_prompt = 4;
    options_.max_staleness = 1;
    options_.probe.every = 0;
    options_.split.every = 1;
    server_->set_sample([](const auto& request, rollout::v1::Completion* completion) {
      completion->add_token_ids(
          static_cast<int32_t>(std::min<int64_t>(request.group_id(), kEvaluation)));
      completion->set_text(std::to_string(completion->index()));
    });
  }

  std::set<int64_t> ReplayedGroups() const {
    std::set<int64_t> groups;
    for (const auto& request : server_->score_requests()) {
      for (const auto& sequence : request.sequences()) {
        groups.insert(sequence.token_ids(sequence.token_ids_size() - 1));
      }
    }
    return groups;
  }

  static constexpr int64_t kEvaluation = 1000;
};

// Where pushes do not wait for groups, a group of a step that measures the split is replayed when
// it was drawn. Groups 0 and 1 make no weights, so that train step 2 is of groups 4 and 5.
TEST_F(ReplayTest, AfterASkippedStepTheGroupsOfTheStepThatMeasuresAreReplayed) {
  options_.split.every = 2;
  options_.steps = 3;
  skip_first_ = 1;
  ASSERT_THAT(Run(), IsOk());
  ASSERT_EQ(trained_, (std::vector<std::vector<int64_t>>{{2, 3}, {4, 5}, {6, 7}}));
  const std::set<int64_t> replayed = ReplayedGroups();
  EXPECT_TRUE(replayed.contains(4) && replayed.contains(5));
  EXPECT_FALSE(replayed.contains(6) || replayed.contains(7)) << "train step 3 measures nothing";
}

TEST_F(ReplayTest, GroupsOfAnEvaluationAreNotReplayedAsThoseOfATrainStep) {
  options_.steps = 1;
  options_.data.eval = options_.data.train;
  ASSERT_THAT(Run(), IsOk());
  EXPECT_TRUE(ReplayedGroups().contains(0));
  EXPECT_FALSE(ReplayedGroups().contains(kEvaluation));
}

}  // namespace
}  // namespace tandem::trainer
