#include "trainer/trainer_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/support/status_matchers.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;

TrainerOptions Valid() {
  TrainerOptions options;
  options.model = "m";
  options.data.train = "p.jsonl";
  return options;
}

TEST(TrainerOptions, TheResolvedConfigurationReadsBackToItself) {
  TrainerOptions options;
  OptionBinder binder;
  binder.Section("trainer", "", [&](OptionBinder& b) { BindOptions(b, options); });
  ASSERT_THAT(binder.Set("trainer.optimizer.learning_rate=1e-5"), IsOk());
  ASSERT_THAT(binder.Set("trainer.push.rounding=nearest"), IsOk());
  const std::string yaml = binder.ToYaml();
  ASSERT_THAT(binder.LoadString(yaml, "resolved"), IsOk());
  EXPECT_EQ(binder.ToYaml(), yaml);
  EXPECT_EQ(options.learner.cast.rounding, Rounding::kNearest);
  EXPECT_DOUBLE_EQ(options.learner.step.optimizer.learning_rate, 1e-5);
}

TEST(TrainerOptions, FiltersAreTakenSinceTheTrainerReplaysThemAndBannedStopTokensAreNot) {
  TrainerOptions options = Valid();
  options.sampling.top_p = 0.9;
  options.sampling.top_k = 10;
  options.sampling.min_p = 0.05;
  EXPECT_THAT(CheckOptions(options), IsOk());
  options.sampling.min_new_tokens = 3;
  EXPECT_THAT(CheckOptions(options),
              FailsWith(absl::StatusCode::kInvalidArgument, "min_new_tokens"));
}

TEST(TrainerOptions, PeersAreThoseThatAreKnownAndEachOnce) {
  TrainerOptions options = Valid();
  options.learner.step.peer_names = {"verl", "nemo_rl", "trl", "prime_rl"};
  EXPECT_THAT(CheckOptions(options), IsOk());
  options.learner.step.peer_names = {"verl", "slime"};
  EXPECT_THAT(CheckOptions(options), FailsWith(absl::StatusCode::kInvalidArgument,
                                               "metrics.peer_names: \"slime\" is none of verl"));
  options.learner.step.peer_names = {"trl", "verl", "trl"};
  EXPECT_THAT(CheckOptions(options), FailsWith(absl::StatusCode::kInvalidArgument,
                                               "metrics.peer_names: \"trl\" is there twice"));
}

TEST(TrainerOptions, AnAdvantageOfWhatIsCorrectNeedsARewardThatSaysIt) {
  for (const AdvantageKind kind : {AdvantageKind::kPassAtK, AdvantageKind::kCorrectOnly}) {
    TrainerOptions options = Valid();
    options.advantage.kind = kind;
    options.reward.weights = {{"length_penalty", 1}, {"repetition", 1}};
    options.reward.length_soft_tokens = 4;
    options.reward.length_hard_tokens = 8;
    EXPECT_THAT(CheckOptions(options), FailsWith(absl::StatusCode::kInvalidArgument,
                                                 "no component of reward.weights or reward.gold"));
    options.reward.gold = {"number_answer"};
    EXPECT_THAT(CheckOptions(options), IsOk());
  }
}

TEST(TrainerOptions, AKlBudgetNeedsAReferenceToMeasureAgainst) {
  TrainerOptions options = Valid();
  options.alerts.kl_budget = 0.1;
  EXPECT_THAT(CheckOptions(options), FailsWith(absl::StatusCode::kInvalidArgument,
                                               "set trainer.measure_reference_kl true"));
  options.learner.measure_reference_kl = true;
  EXPECT_THAT(CheckOptions(options), IsOk());
  options.learner.measure_reference_kl = false;
  options.learner.step.loss.kl_coefficient = 0.01;
  options.alerts.on_kl = OnKl::kStop;
  EXPECT_THAT(CheckOptions(options), IsOk());
  options.alerts.on_kl = OnKl::kRollBack;
  EXPECT_THAT(CheckOptions(options), FailsWith(absl::StatusCode::kInvalidArgument,
                                               "needs trainer.checkpoint.every above 0"));
  options.checkpoint.every = 1;
  EXPECT_THAT(CheckOptions(options), IsOk());
  options.alerts.kl_budget = 0;
  EXPECT_THAT(CheckOptions(options), FailsWith(absl::StatusCode::kInvalidArgument,
                                               "need trainer.alerts.kl_budget above 0"));
}

TEST(TrainerOptions, PairsAndTheLossThatReadsThemGoTogether) {
  TrainerOptions options = Valid();
  options.learner.step.loss.objective.kind = offpolicy::ObjectiveKind::kPreference;
  options.learner.step.correction.kind = offpolicy::CorrectionKind::kSequenceTis;
  EXPECT_THAT(CheckOptions(options), FailsWith(absl::StatusCode::kInvalidArgument,
                                               "as trainer.preset online_dpo does, or neither"));
  options.advantage.kind = AdvantageKind::kBestWorst;
  EXPECT_THAT(CheckOptions(options), IsOk());
  options.alerts.kl_budget = 1;
  EXPECT_THAT(CheckOptions(options), IsOk()) << "its loss has a reference policy";
}

TEST(TrainerOptions, AForeignServerIsNotAskedForWhatItDoesNotGive) {
  TrainerOptions options = Valid();
  options.servers = {"a:1", "vllm://b:8000"};
  EXPECT_THAT(CheckOptions(options), IsOk());
  options.sampling.top_p = 0.9;
  EXPECT_THAT(CheckOptions(options), FailsWith(absl::StatusCode::kInvalidArgument,
                                               "vllm://b:8000 does not say which ids"));
  options.sampling.top_p = 1;
  options.deterministic = true;
  EXPECT_THAT(CheckOptions(options), FailsWith(absl::StatusCode::kInvalidArgument, "no bits"));
}

// So that a launcher finds it before it starts servers.
TEST(TrainerOptions, ARewardThatCannotBeMadeIsRefusedWithTheOptions) {
  TrainerOptions options = Valid();
  options.reward.weights = {{"last_nunber", 1}};
  EXPECT_THAT(CheckOptions(options),
              FailsWith(absl::StatusCode::kInvalidArgument, "no component 'last_nunber'"));
  options.reward.weights = {{"regex", 1}};
  options.reward.regex = "(";
  EXPECT_THAT(CheckOptions(options),
              FailsWith(absl::StatusCode::kInvalidArgument, "reward.regex: missing )"));
}

TEST(TrainerOptions, AnEnvironmentGoesWithWhatItCanPlay) {
  const auto refusal = [](const std::function<void(TrainerOptions&)>& change) {
    TrainerOptions options = Valid();
    options.environment.python = "guess.py:Guess";
    change(options);
    return std::string(CheckOptions(options).message());
  };
  using ::testing::HasSubstr;
  EXPECT_EQ(refusal([](TrainerOptions&) {}), "");
  EXPECT_THAT(refusal([](TrainerOptions& o) { o.environment.tools = {"a.py:f"}; }),
              HasSubstr("names python and tools"));
  EXPECT_THAT(refusal([](TrainerOptions& o) { o.environment = {.max_turns = 3}; }),
              HasSubstr("names no environment"));
  EXPECT_THAT(refusal([](TrainerOptions& o) { o.environment.python = "guess.py"; }),
              HasSubstr("'guess.py' names nothing in Python: want FILE.py:NAME"));
  EXPECT_THAT(refusal([](TrainerOptions& o) {
                o.environment = {};
                o.environment.openenv = "host:8000";
              }),
              HasSubstr("such as http://127.0.0.1:8000"));
  EXPECT_THAT(refusal([](TrainerOptions& o) { o.servers = {"vllm://127.0.0.1:8000"}; }),
              HasSubstr("trainer.environment needs servers of Tandem"));
  EXPECT_THAT(refusal([](TrainerOptions& o) { o.group_size.kind = GroupSizeKind::kSequential; }),
              HasSubstr("in two parts"));
  EXPECT_THAT(refusal([](TrainerOptions& o) { o.deterministic = true; }),
              HasSubstr("needs trainer.numerics invariant or exact"));
  EXPECT_EQ(refusal([](TrainerOptions& o) {
              o.deterministic = true;
              o.learner.numerics = Numerics::kInvariant;
            }),
            "");
  EXPECT_THAT(refusal([](TrainerOptions& o) { o.environment.step_timeout_seconds = 1e6; }),
              HasSubstr("raise the latter"));
  EXPECT_THAT(refusal([](TrainerOptions& o) { o.environment.max_completion_tokens = 8; }),
              HasSubstr("the limit of a single turn"));
  EXPECT_THAT(refusal([](TrainerOptions& o) {
                o.environment = {};
                o.reward.weights = {{"environment", 1}};
              }),
              HasSubstr("there is none: set trainer.environment"));
  EXPECT_THAT(refusal([](TrainerOptions& o) {
                o.environment = {};
                o.environment.tools = {"calc.py:add"};
                o.reward.weights = {{"environment", 1}};
              }),
              HasSubstr("reward the answer"));
}

TEST(TrainerOptions, AnEnvironmentThatRewardsCountsOneWithoutWeights) {
  TrainerOptions options = Valid();
  WeighRewards(options);
  EXPECT_EQ(options.reward.weights[0].first, "number_answer");
  options.environment.tools = {"calc.py:add"};
  WeighRewards(options);
  EXPECT_EQ(options.reward.weights[0].first, "number_answer") << "tools give no reward";
  options.environment = {};
  options.environment.python = "guess.py:Guess";
  WeighRewards(options);
  ASSERT_EQ(options.reward.weights.size(), 1u);
  EXPECT_EQ(options.reward.weights[0], std::make_pair(std::string("environment"), 1.0));
}

TEST(TrainerOptions, TheLongestCompletionIsThatOfAllTurns) {
  TrainerOptions options = Valid();
  options.sampling.max_new_tokens = 64;
  EXPECT_EQ(LongestCompletion(options), 64);
  EXPECT_FALSE(TurnsOf(options).has_value());
  options.environment.python = "guess.py:Guess";
  options.environment.max_turns = 5;
  EXPECT_EQ(LongestCompletion(options), 320);
  options.environment.max_completion_tokens = 100;
  EXPECT_EQ(LongestCompletion(options), 100);
  EXPECT_EQ(TurnsOf(options)->max_turns(), 5);
  EXPECT_EQ(TurnsOf(options)->max_completion_tokens(), 100);
}

TEST(TrainerOptions, WhatIsMissingIsNamed) {
  TrainerOptions options = Valid();
  options.model.clear();
  EXPECT_THAT(CheckOptions(options),
              FailsWith(absl::StatusCode::kInvalidArgument, "trainer.model"));
  options = Valid();
  options.data.train.clear();
  EXPECT_THAT(CheckOptions(options),
              FailsWith(absl::StatusCode::kInvalidArgument, "trainer.data.train"));
  options = Valid();
  options.run_name = "../elsewhere";
  EXPECT_THAT(CheckOptions(options),
              FailsWith(absl::StatusCode::kInvalidArgument, "trainer.run.name"));
  options = Valid();
  options.deterministic = true;
  options.max_staleness = 1;
  EXPECT_THAT(CheckOptions(options),
              FailsWith(absl::StatusCode::kInvalidArgument, "max_staleness 0"));
}

}  // namespace
}  // namespace tandem::trainer
