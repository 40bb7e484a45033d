// Online DPO through whole train steps: loss.kind preference on groups of two.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "tests/support/status_matchers.h"
#include "tests/trainer/train_steps.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::ExpectSameGradients;
using ::tandem::testing::FailsWith;
using ::tandem::testing::Floats;
using ::tandem::testing::GradientOptions;
using ::tandem::testing::Groups;
using ::tandem::testing::IsOk;
using ::tandem::testing::MakeStep;
using ::tandem::testing::ScoredGroup;

TrainStepOptions PairOptions() {
  TrainStepOptions options = GradientOptions();
  options.loss.objective.kind = offpolicy::ObjectiveKind::kPreference;
  options.correction.kind = offpolicy::CorrectionKind::kSequenceTis;
  options.correction.max_weight = 3;
  return options;
}

std::unique_ptr<TrainStep> PairStep(const TrainStepOptions& options = PairOptions()) {
  return MakeStep(options, 1, /*with_reference=*/true);
}

// Groups of two with completions of 1 and 4 tokens, of the versions 2 and 3.
std::vector<ScoredGroup> Pairs(int num_groups = 3) {
  std::vector<ScoredGroup> groups = Groups(num_groups, 2);
  for (ScoredGroup& group : groups) {
    for (int i = 0; i < 2; ++i) {
      auto* const member = group.mutable_completions(i);
      member->set_advantage(i == 0 ? 1 : -1);
      member->mutable_completion()->mutable_version_spans(0)->set_weight_version(2 + i);
    }
  }
  return groups;
}

double Metric(const StepReport& report, const std::string& name) {
  for (const auto& [of, value] : NamedNumbers(report)) {
    if (of == name) return value;
  }
  ADD_FAILURE() << name << " is missing";
  return 0;
}

// Target and reference are the same at the start, so that every pair has the loss log 2 times its
// weight, and both implicit rewards are 0.
TEST(PairsInTraining, OfTheFirstStepHaveTheLossOfACoin) {
  TrainStepOptions options = PairOptions();
  options.correction.kind = offpolicy::CorrectionKind::kOff;
  const auto report = PairStep(options)->Run(Pairs(), {.value = 4});
  ASSERT_THAT(report, IsOk());
  EXPECT_NEAR(report->loss.total, std::log(2), 1e-6);
  EXPECT_EQ(report->loss.denominator, 3);
  EXPECT_NEAR(Metric(*report, "loss/preference"), std::log(2), 1e-6);
  EXPECT_EQ(Metric(*report, "rewards/margins"), 0);
  EXPECT_EQ(Metric(*report, "rewards/accuracies"), 0);
  EXPECT_EQ(Metric(*report, "pairs/count"), 3);
  EXPECT_EQ(Metric(*report, "pairs/mean_weight"), 1);
  EXPECT_EQ(Metric(*report, "pairs/ess"), 1);
  EXPECT_EQ(Metric(*report, "pairs/staleness_max"), 2);
  EXPECT_EQ(Metric(*report, "pairs/mixed_versions_share"), 1);
}

// Behaviour log-probs are all -3.5, so that the weight of a pair is exp(sum of proximal log-probs of
// both completions + 3.5 x 5 tokens), at most 3.
TEST(PairsInTraining, AreWeighedByTheProductOfTheRatiosOfBothCompletions) {
  const auto report = PairStep()->Run(Pairs());
  ASSERT_THAT(report, IsOk());
  double sum = 0, completions = 0;
  for (const auto& group : report->proximal_logprobs) {
    double log_weight = 0;
    for (const std::vector<float>& tokens : group) {
      double of_completion = 0;
      for (const float logprob : tokens) of_completion += logprob + 3.5;
      log_weight += of_completion;
      completions += std::min(std::exp(of_completion), 3.0) / 6;
    }
    sum += std::min(std::exp(log_weight), 3.0);
  }
  EXPECT_GT(std::abs(sum / 3 - completions), 0.01) << "the completions' own weights differ";
  EXPECT_NEAR(Metric(*report, "pairs/mean_weight"), sum / 3, 1e-4);
  EXPECT_NEAR(report->loss.total, sum / 3 * std::log(2), 1e-4);
}

TEST(PairsInTraining, LearnThePreference) {
  TrainStepOptions options = PairOptions();
  options.correction.kind = offpolicy::CorrectionKind::kOff;
  options.optimizer = {.learning_rate = 3e-3};
  const auto step = PairStep(options);
  for (int i = 0; i < 5; ++i) ASSERT_THAT(step->Run(Pairs()), IsOk());
  const auto report = step->Run(Pairs());
  EXPECT_EQ(Metric(*report, "rewards/accuracies"), 1);
  EXPECT_LT(report->loss.total, std::log(2) - 0.05);
}

TEST(PairsInTraining, ArePulledApartByNoMicrobatch) {
  TrainStepOptions small = PairOptions();
  small.microbatch_tokens = 1;
  const auto whole = PairStep(), split = PairStep(small);
  const auto a = whole->Run(Pairs()), b = split->Run(Pairs());
  ASSERT_THAT(a, IsOk());
  ASSERT_THAT(b, IsOk());
  EXPECT_NEAR(a->loss.total, b->loss.total, 1e-6);
  ExpectSameGradients(*whole, *split);
}

TEST(PairsInTraining, HaveAnNllTermOfTheMinibatchsChosenTokens) {
  TrainStepOptions options = PairOptions(), small = options;
  options.loss.preference.rpo_alpha = small.loss.preference.rpo_alpha = 0.5;
  small.microbatch_tokens = 1;
  const auto whole = PairStep(options), split = PairStep(small);
  ASSERT_THAT(whole->Run(Pairs()), IsOk());
  ASSERT_THAT(split->Run(Pairs()), IsOk());
  ExpectSameGradients(*whole, *split);
}

TEST(PairsInTraining, NeedAReferencePolicyUnlessTheLossHasNone) {
  TrainStepSetup setup{.config = testing::ToyConfig()};
  setup.weights = testing::ToyWeights(setup.config);
  TrainStepOptions options = PairOptions();
  EXPECT_THAT(TrainStep::Create(setup, options).status(),
              FailsWith(absl::StatusCode::kInvalidArgument, "there is none"));
  options.loss.preference.kind = PreferenceLossKind::kSimpo;
  auto step = TrainStep::Create(setup, options);
  ASSERT_THAT(step, IsOk());
  EXPECT_THAT((*step)->Run(Pairs()), IsOk());
}

TEST(PairsInTraining, RefuseGroupsThatAreNoPair) {
  std::vector<ScoredGroup> groups = Pairs();
  groups[1].mutable_completions(1)->set_masked(true);
  EXPECT_THAT(PairStep()->Run(groups).status(),
              FailsWith(absl::StatusCode::kInvalidArgument, "group 1 of the batch is no pair"));
}

TEST(PairsInTraining, RefuseOptionsThatHaveNoPlaceForAPair) {
  const auto check = [](auto change) {
    TrainStepOptions options = PairOptions();
    change(options);
    return CheckOptions(options);
  };
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(check([](auto&) {}), IsOk());
  EXPECT_THAT(check([](auto& o) { o.correction.kind = offpolicy::CorrectionKind::kTokenTis; }),
              FailsWith(invalid, "correction.kind weighs single tokens"));
  EXPECT_THAT(check([](auto& o) { o.correction.mode = offpolicy::CorrectionMode::kBypass; }),
              FailsWith(invalid, "loss.kind preference has no ratio"));
  EXPECT_THAT(check([](auto& o) { o.loss.kl_coefficient = 0.1; }),
              FailsWith(invalid, "loss.preference.beta holds the policy"));
  EXPECT_THAT(check([](auto& o) { o.loss.preference.kind = PreferenceLossKind::kKto; }),
              FailsWith(invalid, "kto reads single completions"));
  EXPECT_THAT(check([](auto& o) { o.loss.preference.kind = PreferenceLossKind::kOrpo; }),
              FailsWith(invalid, "over the prompt"));
  EXPECT_THAT(check([](auto& o) { o.loss.preference.kind = PreferenceLossKind::kExo; }),
              FailsWith(invalid, "loss.preference: label_smoothing is 0"));
}

TEST(PairsInTraining, GoOnBitForBitFromWhatWasSaved) {
  TrainStepOptions options = PairOptions();
  options.reference = {.kind = ReferenceKind::kReset, .reset_every = 2};
  const auto whole = PairStep(options), before = PairStep(options), after = PairStep(options);
  ASSERT_THAT(whole->Run(Pairs()), IsOk());
  ASSERT_THAT(before->Run(Pairs()), IsOk());
  ASSERT_THAT(after->Restore(before->Masters(), before->OptimizerState(), before->num_updates(),
                             before->numbers()),
              IsOk());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(whole->Run(Pairs())->loss.total, after->Run(Pairs())->loss.total);
  }
  const auto a = whole->Masters(), b = after->Masters();
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(Floats(a[i].read().value()), Floats(b[i].read().value())) << a[i].spec.name;
  }
}

}  // namespace
}  // namespace tandem::trainer
