// The trainer's loop against a scripted server, with a learner that only counts: no LibTorch.
#include "trainer/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <set>
#include <string>

#include "common/base/exit_codes.h"
#include "common/files/file_system.h"
#include "common/rpc/caller_secret.h"
#include "common/rpc/refusal.h"
#include "nlohmann/json.hpp"
#include "tests/support/fake_rollout_server.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/trainer/trainer_fixture.h"
#include "trainer/run/run_owner.h"

namespace tandem::trainer {
namespace {

using nlohmann::json;
using ::tandem::testing::FailsWith;
using ::tandem::testing::FakeRolloutServer;
using ::tandem::testing::IsOk;

TEST_F(TrainerTest, TrainsEveryGroupOnceInOrderAndDeliversEveryVersion) {
  ASSERT_THAT(Run(), IsOk());
  EXPECT_EQ(trained_, (std::vector<std::vector<int64_t>>{{0, 1}, {2, 3}, {4, 5}}));
  EXPECT_EQ(server_->live_version(), 3);
  EXPECT_EQ(server_->num_commits(), 3) << "version 0 is what the server loaded";
  EXPECT_EQ(server_->owner(), "") << "given back";
  const auto lines = Lines("metrics.jsonl");
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[2]["step"], 3);
  EXPECT_EQ(lines[2]["reward/mean"], 0.5);
  EXPECT_EQ(lines[2]["reward/pass_at_k"], 1);
  EXPECT_EQ(lines[2]["loss/total"], 0.5);
  EXPECT_EQ(lines[2]["push/version"], 3);
  EXPECT_EQ(Lines("rollouts/step_2.jsonl").size(), 2u);
  EXPECT_EQ(Events().front(), "run_started");
  EXPECT_EQ(Events().back(), "run_finished");
  EXPECT_EQ(json::parse(*ReadFile(directory_ / "r/run.json"))["model"]["num_parameters"], 4);
}

TEST_F(TrainerTest, ASkippedPushStopsTheRunAndNamesTheReason) {
  options_.push.debug_skip_push_at_step = 2;
  const absl::Status status = Run();
  EXPECT_THAT(status, FailsWith(absl::StatusCode::kDataLoss, "the push was not delivered"));
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kDeliveryNotProven);
  EXPECT_EQ(trained_.size(), 2u) << "nothing sampled from the old weights was trained on";
  EXPECT_EQ(Events().back(), "run_failed");
}

TEST_F(TrainerTest, ResumesFromTheTrainedFrontier) {
  options_.checkpoint.every = 1;
  options_.steps = 2;
  ASSERT_THAT(Run(), IsOk());
  trained_.clear();
  options_.steps = 4;
  ASSERT_THAT(Run(RunMode::kResume), IsOk());
  EXPECT_EQ(trained_, (std::vector<std::vector<int64_t>>{{4, 5}, {6, 7}}));
  EXPECT_EQ(Lines("metrics.jsonl").size(), 4u);
  EXPECT_EQ(server_->live_version(), 4);
}

TEST_F(TrainerTest, AResumeWithOtherPromptsOrAnotherNumberOfThemIsRefused) {
  options_.checkpoint.every = 1;
  options_.steps = 2;
  ASSERT_THAT(Run(), IsOk());
  options_.prompts_per_step = 3;
  const absl::Status status = Run(RunMode::kResume);
  EXPECT_THAT(status, FailsWith(absl::StatusCode::kInvalidArgument, "trainer.prompts_per_step 2"));
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage);
  options_.prompts_per_step = 2;
  EXPECT_THAT(WriteFileAtomically(directory_ / "p.jsonl",
                                  "{\"prompt\":\"a\",\"answer\":\"0\"}\n"
                                  "{\"prompt\":\"d\",\"answer\":\"0\"}\n"),
              IsOk());
  EXPECT_THAT(Run(RunMode::kResume),
              FailsWith(absl::StatusCode::kInvalidArgument, "the prompts (trainer.data)"));
}

TEST_F(TrainerTest, WithDamagedCheckpointsAloneAResumeIsRefusedAndNothingIsDeleted) {
  options_.checkpoint.every = 1;
  options_.steps = 2;
  ASSERT_THAT(Run(), IsOk());
  for (const char* const step : {"step_1", "step_2"}) {
    std::filesystem::remove(directory_ / ("r/checkpoints/" + std::string(step) + "/state.json"));
  }
  options_.steps = 4;
  const absl::Status status = Run(RunMode::kResume);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kBadModelOrData) << status;
  EXPECT_EQ(Lines("metrics.jsonl").size(), 2u);
}

TEST_F(TrainerTest, AResumeWithoutAnyCheckpointIsRefusedAndNothingIsDeleted) {
  options_.checkpoint.every = 1;
  options_.steps = 2;
  ASSERT_THAT(Run(), IsOk());
  for (const char* const step : {"step_1", "step_2"}) {
    std::filesystem::remove_all(directory_ / ("r/checkpoints/" + std::string(step)));
  }
  options_.steps = 4;
  for (const RunMode mode : {RunMode::kResume, RunMode::kResumeOrFresh}) {
    const absl::Status status = Run(mode);
    EXPECT_THAT(status, FailsWith(absl::StatusCode::kNotFound,
                                  "the run has records of 2 train steps, which a start at step 0"));
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kBadModelOrData);
    EXPECT_EQ(Lines("metrics.jsonl").size(), 2u);
    EXPECT_EQ(Lines("rollouts/step_2.jsonl").size(), 2u);
  }
}

TEST_F(TrainerTest, ARunThatDiedBeforeItsFirstCheckpointBeginsAgainWhereThatIsAskedForAndSaysSo) {
  options_.checkpoint.at_end = false;
  ASSERT_THAT(Run(), IsOk());
  EXPECT_EQ(ExitCodeOf(Run(RunMode::kResume)), ExitCode::kBadModelOrData);
  EXPECT_EQ(Lines("metrics.jsonl").size(), 3u);
  trained_.clear();
  std::string said;
  on_progress_ = [&said](const json& line) {
    if (line.value("kind", "") == "started_over") said = line["message"];
  };
  ASSERT_THAT(Run(RunMode::kResumeOrFresh), IsOk());
  EXPECT_EQ(trained_, (std::vector<std::vector<int64_t>>{{0, 1}, {2, 3}, {4, 5}}));
  EXPECT_EQ(Events().front(), "started_over");
  EXPECT_NE(said.find("the records of 3 train steps are deleted"), std::string::npos) << said;
}

TEST_F(TrainerTest, ARunThatDiedBeforeItsFirstStepIsResumedFromItsStart) {
  options_.checkpoint.at_end = false;
  ASSERT_THAT(Run(), IsOk());
  ASSERT_THAT(WriteFileAtomically(directory_ / "r/metrics.jsonl", ""), IsOk());
  EXPECT_THAT(Run(RunMode::kResume), IsOk());
}

TEST_F(TrainerTest, AStopSavesACheckpointAndEndsWell) {
  options_.steps = 1000;
  on_progress_ = [this](const json& line) {
    if (line.contains("reward/mean") && line["step"] == 2) stop_.Request();
  };
  ASSERT_THAT(Run(), IsOk());
  EXPECT_EQ(*ReadFile(directory_ / "r/checkpoints/LATEST"), "step_2\n");
  EXPECT_EQ(Events().back(), "run_stopped");
}

TEST_F(TrainerTest, AStepWithoutAFiniteLossRaisesNoVersionAndTooManyEndTheRun) {
  skip_ = true;
  options_.max_skipped_steps = 2;
  const absl::Status status = Run();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kTooManySkipped) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("the loss is nan"));
  EXPECT_EQ(server_->live_version(), 0);
  EXPECT_TRUE(Lines("metrics.jsonl").empty());
}

TEST_F(TrainerTest, AServerThatWasStartedAnewIsGivenTheWeightsAgain) {
  options_.steps = 4;
  bool restarted = false;
  on_progress_ = [&](const json& line) {
    if (!restarted && line.contains("reward/mean") && line["step"] == 2) {
      restarted = true;
      server_->Stop();
      server_->Restart();
    }
  };
  ASSERT_THAT(Run(), IsOk());
  EXPECT_EQ(server_->live_version(), 4);
  EXPECT_EQ(trained_.size(), 4u);
  EXPECT_THAT(Events(), ::testing::Contains("server_lost"));
  EXPECT_THAT(Events(), ::testing::Contains("server_back"));
}

std::string PortOf(const FakeRolloutServer& server) {
  return server.address().substr(server.address().rfind(':') + 1);
}

TEST_F(TrainerTest, ServersOfANameMayComeAndGoWhileTheRunGoesOn) {
  FakeRolloutServer other({Tensor("w", 0)}, (*Tokenizer::Load(model_))->hash());
  std::atomic<bool> first_named = true, second_named = false;
  resolver_ = [&](const std::string& name) -> absl::StatusOr<std::vector<std::string>> {
    if (name == "first" ? first_named.load() : second_named.load()) return {{"127.0.0.1"}};
    return absl::NotFoundError("no such name");
  };
  options_.servers = {"dns:first:" + PortOf(*server_), "dns:second:" + PortOf(other)};
  options_.steps = 6;
  on_progress_ = [&](const json& line) {
    if (!line.contains("reward/mean") || line["step"] != 2 || second_named) return;
    first_named = false;
    second_named = true;
    server_->Stop();
  };
  ASSERT_THAT(Run(), IsOk());
  EXPECT_EQ(server_->live_version(), 2) << "of the fake: what it had when it was stopped";
  EXPECT_EQ(other.live_version(), 6);
  EXPECT_EQ(trained_.size(), 6u);
  EXPECT_THAT(Events(), ::testing::IsSupersetOf({"server_lost", "server_retired", "server_ready"}));
  EXPECT_EQ(other.owner(), "") << "given back";
}

TEST_F(TrainerTest, WithoutAnyServerTheRunWaitsForItsStartPatience) {
  resolver_ = [](const std::string&) -> absl::StatusOr<std::vector<std::string>> {
    return absl::NotFoundError("no such name");
  };
  options_.servers = {"dns:rollout:50051"};
  options_.client.server_patience_seconds = 1000;
  options_.client.start_patience_seconds = 0.3;
  const absl::Status status = Run();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kServerLost) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("start_patience_seconds"));
}

TEST_F(TrainerTest, ADeterministicRunRefusesServersThatMayComeAndGo) {
  options_.servers = {"dns:rollout:50051"};
  options_.deterministic = true;
  EXPECT_THAT(Run(), FailsWith(absl::StatusCode::kInvalidArgument, "not by dns:"));
}

TEST_F(TrainerTest, ADeadServerEndsTheRunWithItsOwnCode) {
  options_.client.server_patience_seconds = 0.3;
  server_->Stop();
  EXPECT_EQ(ExitCodeOf(Run()), ExitCode::kServerLost);
}

TEST_F(TrainerTest, EveryCallOfARunShowsItsSecretForThatServerAndAResumedRunTheSame) {
  options_.steps = 2;
  ASSERT_THAT(Run(), IsOk());
  const auto first = server_->callers();
  const auto owner = OpenRunOwner(directory_ / "r/owner", "r", /*resumed=*/true);
  ASSERT_THAT(owner, IsOk());
  const std::set<std::string> shown = {rpc::SecretForServer(owner->secret, server_->address())};
  for (const char* method : {"InitTransfer", "GetWeightInfo", "BeginUpdate", "PushChunks",
                             "CommitUpdate", "GenerateGroup"}) {
    ASSERT_TRUE(first.contains(method)) << method;
    EXPECT_EQ(first.at(method), shown) << method;
  }
  options_.steps = 3;
  ASSERT_THAT(Run(RunMode::kResume), IsOk());
  for (const auto& [method, secrets] : server_->callers()) EXPECT_EQ(secrets, shown) << method;
  EXPECT_EQ(json::parse(*ReadFile(directory_ / "r/run.json"))["run_id"], owner->run_id);
}

// Before its first checkpoint, too.
TEST_F(TrainerTest, ARunThatBeginsAgainIsStillTheRunThatHasTheServer) {
  options_.checkpoint.at_end = false;
  ASSERT_THAT(Run(), IsOk());
  const std::string run_id = json::parse(*ReadFile(directory_ / "r/run.json"))["run_id"];
  server_->set_owner(run_id);  // as if it had died without giving the server back
  EXPECT_THAT(Run(RunMode::kResumeOrFresh), IsOk());
}

TEST_F(TrainerTest, ATrainerThatLostTheSecretOfItsRunHasTheServerWhenTheLeaseHasEnded) {
  const absl::Status denied =
      absl::PermissionDeniedError("run 'r' owns this server for another 0.5 s");
  server_->FailNextClaims({denied, denied, denied});
  EXPECT_THAT(Run(), IsOk());
  EXPECT_THAT(Events(), ::testing::Contains("server_lost"));
}

TEST_F(TrainerTest, AnotherRunsServerEndsTheRunWithItsOwnCode) {
  server_->set_owner("other");
  const absl::Status status = Run();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kServerOwned) << status;
}

TEST_F(TrainerTest, AServerOfAnotherTokenizerIsRefused) {
  FakeRolloutServer other({Tensor("w", 0)}, "feed");
  options_.servers = {other.address()};
  EXPECT_THAT(Run(), FailsWith(absl::StatusCode::kInvalidArgument, "another tokenizer (feed"));
}

TEST_F(TrainerTest, ADiskThatIsFullEndsTheRunUnlessALaterCheckpointIsSaved) {
  ASSERT_EQ(setenv("TANDEM_FAIL_WRITE", "step_2.tmp:ENOSPC:10", 1), 0);
  options_.checkpoint.every = 1;
  EXPECT_THAT(Run(), IsOk());
  EXPECT_THAT(Events(), ::testing::Contains("checkpoint_failed"));
  ASSERT_EQ(setenv("TANDEM_FAIL_WRITE", "step_3.tmp:ENOSPC:10", 1), 0);
  EXPECT_EQ(ExitCodeOf(Run(RunMode::kClean)), ExitCode::kStorage);
  EXPECT_EQ(*ReadFile(directory_ / "r/checkpoints/LATEST"), "step_2\n");
  ASSERT_EQ(setenv("TANDEM_FAIL_WRITE", "metrics.jsonl:ENOSPC:10", 1), 0);
  EXPECT_EQ(ExitCodeOf(Run(RunMode::kClean)), ExitCode::kStorage);
  ASSERT_EQ(unsetenv("TANDEM_FAIL_WRITE"), 0);
}

TEST_F(TrainerTest, EvaluatesGreedilyBeforeAndAfter) {
  options_.data.eval = options_.data.train;
  options_.eval.pass_at_k = 2;
  ASSERT_THAT(Run(), IsOk());
  const auto lines = Lines("metrics.jsonl");
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0]["step"], 0);
  EXPECT_EQ(lines[0]["eval/greedy_share_correct"], 1);
  EXPECT_EQ(lines[0]["eval/num_prompts"], 3);
  EXPECT_EQ(lines[3]["eval/pass_at_k"], 1);
  EXPECT_EQ(lines[3]["eval/k"], 2);
}

TEST_F(TrainerTest, EvaluatesTheFirstPromptsWhenTheFileIsTooLong) {
  options_.data.eval = options_.data.train;
  options_.eval.num_prompts = 2;
  ASSERT_THAT(Run(), IsOk());
  EXPECT_EQ(Lines("metrics.jsonl")[0]["eval/num_prompts"], 2);
}

// Servers that are held back run the weights of the step before: those are what is evaluated.
TEST_F(TrainerTest, EvaluatesWhatServersRunWhereTheyAreHeldBack) {
  options_.max_staleness = options_.push.hold_back_versions = 1;
  options_.data.eval = options_.data.train;
  options_.eval.every = 1;
  ASSERT_THAT(Run(), IsOk());
  const auto lines = Lines("metrics.jsonl");
  ASSERT_EQ(lines.size(), 4u);
  for (size_t step = 0; step < lines.size(); ++step) {
    EXPECT_EQ(lines[step]["eval/num_prompts"], 3) << step;
    EXPECT_EQ(lines[step]["eval/greedy_share_correct"], 1) << step;
    EXPECT_EQ(lines[step]["eval/weight_version"], step == 0 ? 0 : step - 1) << step;
  }
  std::set<int64_t> ids;
  for (const auto& request : server_->requests()) ids.insert(request.group_id());
  EXPECT_EQ(ids.size(), server_->requests().size()) << "no evaluation is answered from another's";
}

// Groups of evaluations are those far above the training ones; `fails` says which do.
FakeRolloutServer::Sample BadEvaluations(std::function<bool()> fails) {
  return [fails](const rollout::v1::GenerateGroupRequest& request,
                 rollout::v1::Completion* completion) {
    completion->set_text(std::to_string(completion->index()));
    completion->add_token_ids(1);
    // More tokens than were asked for: the client refuses them.
    if (request.group_id() > 1000 && fails()) {
      for (int i = 0; i < 20; ++i) completion->add_token_ids(1);
    }
  };
}

TEST_F(TrainerTest, AFirstEvaluationOfNoPromptEndsTheRun) {
  server_->set_sample(BadEvaluations([] { return true; }));
  options_.data.eval = options_.data.train;
  const absl::Status status = Run();
  EXPECT_THAT(status, FailsWith(absl::StatusCode::kInternal,
                                "none of 3 held-out prompts was answered at temperature 0"));
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kBadModelOrData) << "the same again is not worth a try";
  EXPECT_TRUE(trained_.empty());
  EXPECT_TRUE(Lines("metrics.jsonl").empty()) << "no 0 in the place of a number";
}

TEST_F(TrainerTest, ALaterEvaluationOfNoPromptIsAnEventAndNoNumber) {
  std::atomic<bool> fails = false;
  server_->set_sample(BadEvaluations([&fails] { return fails.load(); }));
  options_.data.eval = options_.data.train;
  options_.steps = 1;
  on_progress_ = [&](const json& line) {
    if (line.contains("eval/greedy")) fails = true;
  };
  ASSERT_THAT(Run(), IsOk());
  const auto lines = Lines("metrics.jsonl");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["eval/num_prompts"], 3);
  EXPECT_FALSE(lines[1].contains("eval/greedy"));
  EXPECT_THAT(Events(), ::testing::Contains("eval_failed"));
}

// Rewards that are 0 for every completion, for more steps than may be skipped: a start with sparse
// rewards. Completion 0 is right from the fourth step on.
TEST_F(TrainerTest, StepsOfEqualRewardsGoOnAndAreSeen) {
  options_.advantage.drop_zero_variance = true;
  options_.max_skipped_steps = 1;
  options_.steps = 5;
  server_->set_sample(
      [](const rollout::v1::GenerateGroupRequest& request, rollout::v1::Completion* completion) {
        const bool right = request.group_id() >= 6 && completion->index() == 0;
        completion->set_text(right ? "0" : "7");
        completion->add_token_ids(1);
      });
  ASSERT_THAT(Run(), IsOk());
  EXPECT_EQ(trained_, (std::vector<std::vector<int64_t>>{{6, 7}, {8, 9}}));
  EXPECT_EQ(server_->live_version(), 5);
  const auto lines = Lines("metrics.jsonl");
  ASSERT_EQ(lines.size(), 5u);
  for (int step = 1; step <= 5; ++step) {
    const json& line = lines[static_cast<size_t>(step) - 1];
    EXPECT_EQ(line["step"], step);
    EXPECT_EQ(line["reward/mean"], step < 4 ? 0 : 0.5);
    EXPECT_EQ(line["reward/zero_variance_share"], step < 4 ? 1 : 0);
    EXPECT_EQ(line["length/mean"], 1);
    EXPECT_EQ(line.contains("loss/total"), step >= 4);
    EXPECT_EQ(Lines("rollouts/step_" + std::to_string(step) + ".jsonl").size(), 2u);
  }
  EXPECT_EQ(lines[0]["drops/group_zero_variance"], 2);
  EXPECT_EQ(lines[0]["loss/num_updates"], 0);
  EXPECT_EQ(Lines("rollouts/step_1.jsonl")[0]["drop_reason"], "zero_variance");
  EXPECT_EQ(Lines("rollouts/step_4.jsonl")[0]["drop_reason"], "");
  EXPECT_THAT(Events(), ::testing::Not(::testing::Contains("step_skipped")));
}

TEST_F(TrainerTest, DeterministicGroupsAreAdmittedTogether) {
  options_.deterministic = true;
  options_.steps = 1;
  ASSERT_THAT(Run(), IsOk());
  for (const auto& request : server_->requests()) {
    EXPECT_EQ(request.admission_batch().batch_id(), 1);
    EXPECT_EQ(request.admission_batch().num_groups(), 2);
  }
}

TEST_F(TrainerTest, StaleWeightsUpToTheBoundAreAllowed) {
  options_.max_staleness = 1;
  options_.steps = 3;
  ASSERT_THAT(Run(), IsOk());
  EXPECT_EQ(trained_, (std::vector<std::vector<int64_t>>{{0, 1}, {2, 3}, {4, 5}}));
  for (const json& line : Lines("metrics.jsonl")) EXPECT_LE(line["staleness/max"], 1);
}

// The learner's log-probs never change; a server's do, by a quarter nat a version: as if what the
// trainer learned never arrived, at distances 0, 1, 2, ...
class ProbedTrainerTest : public TrainerTest {
 protected:
  ProbedTrainerTest() {
    options_.completions_per_prompt = 4;
    options_.probe.every = 1;
    options_.split.every = 1;
    options_.steps = 6;
    server_->set_score([](int64_t version, int t) {
      return -1 - static_cast<float>(t) / 8 - 0.25f * static_cast<float>(version);
    });
  }
};

TEST_F(ProbedTrainerTest, AGapThatGrowsWithTheDistanceRaisesNonDelivery) {
  ASSERT_THAT(Run(), IsOk());
  const auto lines = Lines("metrics.jsonl");
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_EQ(lines[0]["drift/probe/mean_abs_delta"], 0);
  EXPECT_EQ(lines[3]["drift/probe/mean_abs_delta"], 0.75);
  EXPECT_EQ(lines[3]["drift/probe/distance"], 3);
  EXPECT_TRUE(lines[3]["drift/delivery/undelivered"].is_null()) << "four pushes";
  EXPECT_EQ(lines[5]["drift/delivery/undelivered_low"], 1.5625);  // (0.25 x 5)^2
  std::vector<std::pair<int, std::string>> alerts;
  for (const json& event : Lines("events.jsonl")) {
    if (event["kind"] == "alert" && event["name"] == "non_delivery") {
      alerts.emplace_back(event["step"], event["message"]);
    }
  }
  ASSERT_EQ(alerts.size(), 2u);
  EXPECT_EQ(alerts[0], std::pair(5, std::string("non_delivery is 1 [1, 1], threshold 0")));
}

TEST_F(ProbedTrainerTest, BothSidesScoreTheSetOfTheFirstStep) {
  ASSERT_THAT(Run(), IsOk());
  const auto set = Lines("probe/set.jsonl");
  ASSERT_EQ(set.size(), 1u + 8u);
  EXPECT_EQ(set[1]["completion_token_ids"],
            Lines("rollouts/step_1.jsonl")[0]["completions"][0]["token_ids"]);
  int probes = 0, replays = 0;
  for (const auto& request : server_->score_requests()) {
    ++(request.as_served() ? probes : replays);
    EXPECT_EQ(request.path() == rollout::v1::SCORE_PATH_DECODE, !request.as_served());
  }
  EXPECT_EQ(probes, 6);
  EXPECT_EQ(replays, 6);
  EXPECT_EQ(Lines("metrics.jsonl")[0]["drift/split/missing_tokens"], 32)
      << "the learner here gives no proximal log-probs";
}

TEST_F(ProbedTrainerTest, AResumedRunKeepsItsSetAndItsPushes) {
  options_.checkpoint.every = 1;
  options_.steps = 3;
  ASSERT_THAT(Run(), IsOk());
  const std::string set = *ReadFile(directory_ / "r/probe/set.jsonl");
  options_.steps = 6;
  ASSERT_THAT(Run(RunMode::kResume), IsOk());
  EXPECT_EQ(*ReadFile(directory_ / "r/probe/set.jsonl"), set);
  const auto pushes = Lines("probe/pushes.jsonl");
  ASSERT_EQ(pushes.size(), 6u);
  EXPECT_EQ(pushes[5]["version"], 5);
  EXPECT_EQ(Lines("metrics.jsonl")[5]["drift/delivery/pushes"], 5)
      << "the push distance of the first version after a resume is unknown";
  ASSERT_THAT(WriteFileAtomically(directory_ / "r/probe/set.jsonl", set.substr(0, set.size() - 40)),
              IsOk());
  EXPECT_THAT(Run(RunMode::kResume), FailsWith(absl::StatusCode::kInvalidArgument, "set.jsonl:9"));
}

TEST_F(ProbedTrainerTest, GroupsThatWereTakenAndNotTrainedAreAskedForAgain) {
  fails_to_score_after_ = 1;
  options_.steps = 3;
  EXPECT_THAT(Run(), FailsWith(absl::StatusCode::kInternal, "cannot score"));
  EXPECT_EQ(*ReadFile(directory_ / "r/checkpoints/LATEST"), "step_1\n") << "what it had learned";
  fails_to_score_after_ = -1;
  ASSERT_THAT(Run(RunMode::kResume), IsOk());
  EXPECT_EQ(trained_, (std::vector<std::vector<int64_t>>{{0, 1}, {2, 3}, {4, 5}}));
}

TEST_F(ProbedTrainerTest, AScoreTellsABusyServerFromOneThatIsGone) {
  options_.split.every = 0;
  options_.steps = 3;
  server_->FailNextScores(
      {rpc::Refused(rpc::Refusal::kQueueFull, absl::ResourceExhaustedError("no place")),
       absl::UnavailableError("its connection ended")});
  ASSERT_THAT(Run(), IsOk());
  std::vector<std::string> told;
  for (const json& event : Lines("events.jsonl")) {
    const std::string kind = event["kind"];
    if (kind == "server_lost" || kind == "probe_failed") told.push_back(event["message"]);
  }
  EXPECT_THAT(told, ::testing::ElementsAre(::testing::HasSubstr("its connection ended"),
                                           ::testing::HasSubstr("its connection ended")));
  EXPECT_EQ(Lines("metrics.jsonl").size(), 3u) << "it answers, and the run goes on";
}

TEST_F(ProbedTrainerTest, WithBothOffNothingIsScored) {
  options_.probe.every = 0;
  options_.split.every = 0;
  ASSERT_THAT(Run(), IsOk());
  EXPECT_TRUE(server_->score_requests().empty());
  EXPECT_FALSE(Lines("metrics.jsonl")[0].contains("drift/probe/tokens"));
  EXPECT_FALSE(Lines("metrics.jsonl")[0].contains("drift/split/tokens"));
}

}  // namespace
}  // namespace tandem::trainer
