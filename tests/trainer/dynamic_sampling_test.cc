// Which groups a run asks for, trains on and drops, against a scripted server with a learner that
// only counts: no LibTorch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <map>
#include <set>

#include "cli/watch/ledger_check.h"
#include "tests/trainer/trainer_fixture.h"
#include "trainer/prompts/group_request.h"

namespace tandem::trainer {
namespace {

using nlohmann::json;
using rollout::v1::GenerateGroupRequest;
using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Steps = std::vector<std::vector<int64_t>>;

int64_t GroupOf(const GenerateGroupRequest& request) {
  return IsExtension(request.group_id()) ? request.group_id() - kFirstExtension
                                         : request.group_id();
}

class DynamicSamplingTest : public TrainerTest {
 protected:
  DynamicSamplingTest() {
    options_.checkpoint.every = 1;
    options_.checkpoint.keep = 9;
    options_.advantage.drop_zero_variance = true;
    options_.dynamic_sampling.refill = true;
    EqualRewardsIn([](int64_t group) { return group % 3 == 0; });
  }

  // The first completion of a group is right, and in groups of equal rewards none is.
  void EqualRewardsIn(std::function<bool(int64_t)> equal) {
    server_->set_sample(
        [equal](const GenerateGroupRequest& request, rollout::v1::Completion* completion) {
          const bool right = completion->index() == 0 && !equal(GroupOf(request));
          completion->set_text(right ? "0" : "7");
          completion->add_token_ids(1);
        });
  }

  std::vector<std::string> Problems() {
    const auto report = cli::CheckLedger(directory_ / "r");
    EXPECT_THAT(report, IsOk());
    return report.ok() ? report->problems : std::vector<std::string>{"unreadable"};
  }

  std::map<int64_t, GenerateGroupRequest> RequestsById() {
    std::map<int64_t, GenerateGroupRequest> requests;
    for (const GenerateGroupRequest& one : server_->requests()) requests[one.group_id()] = one;
    return requests;
  }
};

TEST_F(DynamicSamplingTest, AStepIsRefilledUntilItHasGroupsWithASignal) {
  ASSERT_THAT(Run(), IsOk());
  EXPECT_EQ(trained_, (Steps{{1, 2}, {4, 5}, {7, 8}}));
  const auto lines = Lines("metrics.jsonl");
  EXPECT_EQ(lines.back()["drops/group_zero_variance"], 1);
  EXPECT_NEAR(lines.back()["reward/mean"], 2.0 / 6, 1e-8) << "over the group that was dropped too";
  EXPECT_EQ(lines.back()["groups/consumed"], 3);
  EXPECT_EQ(lines.back()["groups/trained"], 2);
  EXPECT_THAT(Problems(), IsEmpty());
}

TEST_F(DynamicSamplingTest, ARunThatIsResumedTrainsTheSameGroups) {
  options_.steps = 2;
  ASSERT_THAT(Run(), IsOk());
  options_.steps = 4;
  ASSERT_THAT(Run(RunMode::kResume), IsOk());
  EXPECT_EQ(trained_, (Steps{{1, 2}, {4, 5}, {7, 8}, {10, 11}}));
  EXPECT_THAT(Problems(), IsEmpty());
}

TEST_F(DynamicSamplingTest, ADeterministicRunRefillsInRoundsThatAreAdmittedTogether) {
  options_.deterministic = true;
  options_.steps = 1;
  EqualRewardsIn([](int64_t group) { return group < 3; });
  ASSERT_THAT(Run(), IsOk());
  EXPECT_EQ(trained_, (Steps{{3, 4}}));
  const auto requests = RequestsById();
  std::vector<int64_t> batches;
  std::vector<int> sizes;
  for (int64_t id = 0; id < 5; ++id) {
    batches.push_back(requests.at(id).admission_batch().batch_id());
    sizes.push_back(requests.at(id).admission_batch().num_groups());
  }
  EXPECT_THAT(batches, ElementsAre(1, 1, 2, 2, 3))
      << "2 of 2, then 2 for the 2, then 1 for group 2";
  EXPECT_THAT(sizes, ElementsAre(2, 2, 2, 2, 1));
}

TEST_F(DynamicSamplingTest, AStepThatFindsNoSignalEndsAtTheLimitWithoutAnUpdate) {
  options_.steps = 1;
  options_.dynamic_sampling.max_factor = 3;
  EqualRewardsIn([](int64_t) { return true; });
  ASSERT_THAT(Run(), IsOk());
  EXPECT_THAT(trained_, IsEmpty());
  EXPECT_EQ(Lines("metrics.jsonl").back()["drops/group_zero_variance"], 6);
  EXPECT_THAT(Problems(), IsEmpty());
}

TEST_F(DynamicSamplingTest, SkippedStepsKeepTheLedgerInBalanceOverAResume) {
  options_.steps = 2;
  skip_first_ = 2;
  ASSERT_THAT(Run(), IsOk());
  options_.steps = 3;
  skip_first_ = 1;
  ASSERT_THAT(Run(RunMode::kResume), IsOk());
  EXPECT_EQ(trained_, (Steps{{7, 8}, {10, 11}, {16, 17}}));
  EXPECT_THAT(Problems(), IsEmpty());
}

TEST_F(DynamicSamplingTest, AStepDoesNotWaitForASlowGroupWhereMoreWereAskedFor) {
  options_.steps = 1;
  options_.dynamic_sampling.oversampling = 1.5;
  std::promise<void> goes_on;
  const std::shared_future<void> released = goes_on.get_future().share();
  server_->set_sample(
      [released](const GenerateGroupRequest& request, rollout::v1::Completion* completion) {
        if (request.group_id() == 1) released.wait();
        completion->set_text(completion->index() == 0 ? "0" : "7");
        completion->add_token_ids(1);
      });
  on_progress_ = [&goes_on](const json& line) {
    if (line.value("phase", "") == "train")
      goes_on.set_value();  // the step goes on without group 1
  };
  ASSERT_THAT(Run(), IsOk());
  EXPECT_EQ(trained_, (Steps{{0, 2}}));
  EXPECT_EQ(Lines("metrics.jsonl").back()["drops/group_not_needed"], 1);
  EXPECT_THAT(Problems(), IsEmpty());
}

TEST_F(DynamicSamplingTest, GroupsWhoseFirstRewardsDifferGetTheRestOfTheirCompletions) {
  options_.steps = 1;
  options_.completions_per_prompt = 5;
  options_.group_size = {.kind = GroupSizeKind::kSequential, .min = 2};
  ASSERT_THAT(Run(), IsOk());
  EXPECT_EQ(trained_, (Steps{{1, 2}}));
  const auto requests = RequestsById();
  EXPECT_EQ(requests.at(0).num_completions(), 2);
  EXPECT_FALSE(requests.contains(kFirstExtension)) << "group 0 has equal rewards";
  const GenerateGroupRequest& rest = requests.at(kFirstExtension + 1);
  EXPECT_EQ(rest.first_completion(), 2);
  EXPECT_EQ(rest.num_completions(), 3);
  EXPECT_EQ(rest.sampling().seed(), requests.at(1).sampling().seed());
  std::vector<int> sizes;
  for (const json& group : Lines("rollouts/step_1.jsonl")) {
    sizes.push_back(static_cast<int>(group["completions"].size()));
  }
  EXPECT_THAT(sizes, ElementsAre(5, 5, 2)) << "trained ones first";
  EXPECT_THAT(Problems(), IsEmpty());
}

TEST_F(DynamicSamplingTest, ADeterministicRunAsksForTheRestOfAllGroupsAtOnce) {
  options_.steps = 1;
  options_.deterministic = true;
  options_.completions_per_prompt = 4;
  options_.group_size = {.kind = GroupSizeKind::kSequential, .min = 2};
  EqualRewardsIn([](int64_t) { return false; });
  ASSERT_THAT(Run(), IsOk());
  const auto requests = RequestsById();
  for (const int64_t id : {0, 1}) {
    EXPECT_EQ(requests.at(kFirstExtension + id).admission_batch().batch_id(), 2);
    EXPECT_EQ(requests.at(kFirstExtension + id).admission_batch().num_groups(), 2);
  }
}

// Prompt 0 always succeeds, prompt 1 in half of its completions, prompt 2 never.
TEST_F(DynamicSamplingTest, AdaptiveGroupsSpendTheSameTotalWhereSuccessIsUncertain) {
  options_.steps = 4;
  options_.prompts_per_step = 3;
  options_.completions_per_prompt = 8;
  options_.data.shuffle = false;
  options_.dynamic_sampling.refill = false;
  options_.group_size = {.kind = GroupSizeKind::kAdaptive, .min = 2, .max = 20};
  server_->set_sample([](const GenerateGroupRequest& request, rollout::v1::Completion* completion) {
    const int64_t prompt = GroupOf(request) % 3;
    const bool right = prompt == 0 || (prompt == 1 && completion->index() % 2 == 0);
    completion->set_text(right ? "0" : "7");
    completion->add_token_ids(1);
  });
  ASSERT_THAT(Run(), IsOk());
  const auto requests = RequestsById();
  for (int64_t step = 0; step < 4; ++step) {
    int total = 0;
    for (int64_t i = 0; i < 3; ++i) total += requests.at(3 * step + i).num_completions();
    EXPECT_EQ(total, 24) << "step " << step;
  }
  EXPECT_EQ(requests.at(0).num_completions(), 8) << "nothing is known at first";
  // After one group of 8: E[p(1-p)] = 9*1/(10*11) twice, 5*5/(10*11); their roots are 0.286, 0.286
  // and 0.477, so 24 is divided as 6.55, 10.91 and 6.55.
  EXPECT_EQ(requests.at(3).num_completions(), 7);
  EXPECT_EQ(requests.at(4).num_completions(), 11);
  EXPECT_EQ(requests.at(5).num_completions(), 6);
  EXPECT_THAT(Problems(), IsEmpty());
}

TEST_F(DynamicSamplingTest, AWeightedCurriculumGoesOnWithTheSamePromptsAfterAResume) {
  options_.curriculum = {.kind = CurriculumKind::kWeighted, .floor = 0.1, .fading = 0.5};
  options_.max_staleness = 1;
  options_.dynamic_sampling.refill = false;  // so that a round is asked for once a step
  options_.steps = 6;
  const auto prompts = [this] {
    std::map<int64_t, std::vector<int32_t>> ids;
    for (const auto& [id, request] : RequestsById()) {
      ids[id].assign(request.prompt_token_ids().begin(), request.prompt_token_ids().end());
    }
    return ids;
  };
  ASSERT_THAT(Run(), IsOk());
  const auto whole = prompts();
  options_.run_name = "again";
  options_.steps = 3;  // ends with the groups of the next step under way
  ASSERT_THAT(Run(), IsOk());
  options_.steps = 6;
  ASSERT_THAT(Run(RunMode::kResume), IsOk());
  const auto parts = prompts();
  for (int64_t id = 0; id < 12; ++id) EXPECT_EQ(parts.at(id), whole.at(id)) << "group " << id;
}

// The checkpoint of a run that fails in its push has the weights of the step, so the ledger must
// have its groups.
TEST_F(DynamicSamplingTest, ARunThatFailedInAPushGoesOnInBalance) {
  options_.checkpoint.every = 0;
  options_.push.debug_skip_push_at_step = 2;
  EXPECT_EQ(ExitCodeOf(Run()), ExitCode::kDeliveryNotProven);
  options_.push.debug_skip_push_at_step = 0;
  ASSERT_THAT(Run(RunMode::kResume), IsOk());
  EXPECT_EQ(trained_, (Steps{{1, 2}, {4, 5}, {7, 8}}));
  EXPECT_THAT(Problems(), IsEmpty());
}

TEST_F(DynamicSamplingTest, ALedgerThatDoesNotBalanceIsToldSo) {
  ASSERT_THAT(Run(), IsOk());
  const auto change = [this](const std::string& sql) {
    auto file = SqliteFile::Open(directory_ / "r/ledger.sqlite", 1, "");
    ASSERT_THAT(file, IsOk());
    ASSERT_THAT((*file)->Run(sql), IsOk());
  };
  change("DELETE FROM groups WHERE group_id = 4");
  EXPECT_THAT(Problems(), ::testing::Contains("nothing became of group 4"));
  EXPECT_THAT(Problems(), ::testing::Contains(::testing::HasSubstr("step 2 says 2 trained")));
  change("UPDATE groups SET reason = 'stale' WHERE group_id = 0");
  EXPECT_THAT(Problems(),
              ::testing::Contains("metrics.jsonl counts as dropped for version 1: 1 zero_variance; "
                                  "the ledger: 1 stale"));
  EXPECT_THAT(Problems(),
              ::testing::Contains(::testing::HasSubstr("rollouts/step_1.jsonl: group 0")));
  change("UPDATE steps SET next_group = 10 WHERE step = 3");
  EXPECT_THAT(Problems(), ::testing::Contains("checkpoint step_3 goes on from group 9, and step 3 "
                                              "ended before group 10"));
}

TEST_F(DynamicSamplingTest, OptionsThatContradictAreRefused) {
  options_.deterministic = true;
  options_.dynamic_sampling.oversampling = 1.5;
  EXPECT_THAT(Run(),
              FailsWith(absl::StatusCode::kInvalidArgument, "takes the groups that end first"));
  options_.deterministic = false;
  options_.dynamic_sampling.max_factor = 1.2;
  EXPECT_THAT(Run(), FailsWith(absl::StatusCode::kInvalidArgument, "below its oversampling 1.5"));
}

}  // namespace
}  // namespace tandem::trainer
