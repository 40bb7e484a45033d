#include "trainer/train_step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <random>

#include "common/offpolicy/correction_method.h"
#include "common/weights/digest.h"
#include "tests/support/status_matchers.h"
#include "tests/trainer/scored_groups.h"
#include "tests/trainer/toy_model.h"
#include "tests/trainer/train_steps.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::AddCompletion;
using ::tandem::testing::CutIntoTurns;
using ::tandem::testing::ExpectSameGradients;
using ::tandem::testing::FailsWith;
using ::tandem::testing::GradientOptions;
using ::tandem::testing::Gradients;
using ::tandem::testing::Groups;
using ::tandem::testing::GroupWithPrompt;
using ::tandem::testing::IsOk;
using ::tandem::testing::MakeStep;
using ::tandem::testing::ScoredGroup;
using ::tandem::testing::ToyConfig;
using ::tandem::testing::ToyWeights;

// Of one rank: the masters as they are held.
std::vector<HostTensor> MastersOf(const TrainStep& step) {
  std::vector<HostTensor> masters;
  const std::vector<TensorPart> held = step.HeldMasters().value();
  for (const TensorPart& part : held) masters.push_back(part.values);
  return masters;
}

DigestMap Digests(const TrainStep& step) { return DigestTensors(MastersOf(step)); }

TEST(TrainStepTest, Bug19TheGradientDoesNotDependOnTheSplitIntoMicrobatches) {
  using offpolicy::Normalisation;
  for (const Normalisation normalisation :
       {Normalisation::kToken, Normalisation::kSequence, Normalisation::kConstant}) {
    TrainStepOptions options = GradientOptions();
    options.loss.objective.normalisation = normalisation;
    options.loss.objective.constant_length = 16;
    const auto whole = MakeStep(options);
    ASSERT_THAT(whole->Run(Groups()), IsOk());
    for (const int64_t tokens : {1, 15, 30}) {
      options.microbatch_tokens = tokens;
      const auto split = MakeStep(options);
      ASSERT_THAT(split->Run(Groups()), IsOk());
      ExpectSameGradients(*whole, *split);
    }
  }
}

// Groups whose behaviour log-probs differ from the policy's by more for some tokens than others.
std::vector<ScoredGroup> OffPolicyGroups() {
  std::vector<ScoredGroup> groups = Groups();
  std::mt19937 random(11);
  for (ScoredGroup& group : groups) {
    for (auto& scored : *group.mutable_completions()) {
      auto* logprobs = scored.mutable_completion()->mutable_behaviour_logprobs();
      for (float& logprob : *logprobs) logprob += 1e-3f * static_cast<float>(random() % 2000) - 1;
    }
  }
  return groups;
}

// The mean of the weights is over the batch and m2po's mask over the minibatch: neither may depend
// on what happens to stand in one row.
TEST(TrainStepTest, BatchWideCorrectionsDoNotDependOnTheSplitIntoMicrobatches) {
  TrainStepOptions normalised = GradientOptions();
  normalised.correction.batch_normalise = true;
  TrainStepOptions sequences = normalised;
  sequences.correction.kind = offpolicy::CorrectionKind::kSequenceTis;
  TrainStepOptions m2po = GradientOptions();
  m2po.correction.mode = offpolicy::CorrectionMode::kBypass;
  m2po.loss.objective.kind = offpolicy::ObjectiveKind::kM2po;
  TrainStepOptions m2po_clip = m2po;
  m2po_clip.loss.objective.kind = offpolicy::ObjectiveKind::kM2poClip;
  for (TrainStepOptions options : {normalised, sequences, m2po, m2po_clip}) {
    const auto whole = MakeStep(options);
    const auto report = whole->Run(OffPolicyGroups());
    ASSERT_THAT(report, IsOk());
    options.microbatch_tokens = 15;
    const auto split = MakeStep(options);
    const auto in_parts = split->Run(OffPolicyGroups());
    ASSERT_THAT(in_parts, IsOk());
    ExpectSameGradients(*whole, *split);
    EXPECT_EQ(report->loss.clip_high + report->loss.clip_low,
              in_parts->loss.clip_high + in_parts->loss.clip_low);
  }
}

TEST(TrainStepTest, TrainsByEveryNamedMethod) {
  for (const offpolicy::NamedMethod& named : offpolicy::NamedMethods()) {
    const offpolicy::MethodOptions method = offpolicy::ParseMethod(named.settings).value();
    TrainStepOptions options = GradientOptions();
    options.correction = method.correction;
    options.loss.objective = method.objective;
    options.num_minibatches = 2;
    options.microbatch_tokens = 15;
    const auto step = MakeStep(options);
    const auto report = step->Run(OffPolicyGroups());
    ASSERT_THAT(report, IsOk()) << named.name;
    EXPECT_TRUE(std::isfinite(report->loss.total)) << named.name;
    // Behaviour log-probs are off by 0.3 and more here: the narrow gates rightly refuse everything.
    const bool all_refused = report->correction.num_kept == 0;
    EXPECT_EQ(report->optimizer.skipped_updates == 2, all_refused) << named.name;
    EXPECT_EQ(report->skip_reason.empty(), !all_refused) << named.name;
  }
}

TEST(TrainStepTest, NormalisedWeightsGiveTheGradientDividedByTheirMean) {
  TrainStepOptions options = GradientOptions();
  const auto plain = MakeStep(options);
  const auto report = plain->Run(OffPolicyGroups());
  ASSERT_THAT(report, IsOk());
  const double mean = report->correction.weight_sum / 44;
  EXPECT_GT(std::abs(mean - 1), 0.01);
  options.correction.batch_normalise = true;
  const auto normalised = MakeStep(options);
  const auto other = normalised->Run(OffPolicyGroups());
  ExpectSameGradients(*normalised, *plain, 1 / mean);
  EXPECT_NEAR(other->correction.weight_sum / 44, mean, 1e-9) << "reported from before the division";
}

TEST(TrainStepTest, TellsWhatACorrectionKeepsByTheSignOfTheAdvantage) {
  TrainStepOptions options = GradientOptions();
  options.correction.kind = offpolicy::CorrectionKind::kTokenMask;
  options.correction.min_weight = 0.9;
  options.correction.negative_only = true;
  const auto report = MakeStep(options)->Run(OffPolicyGroups());
  ASSERT_THAT(report, IsOk());
  std::map<std::string, double> numbers;
  for (const auto& [name, value] : NamedNumbers(*report)) numbers[name] = value;
  EXPECT_EQ(numbers["correction/positive_kept_fraction"], 1);
  // Of each group's completions of 1, 4, 7 and 10 tokens the second and fourth are negative.
  EXPECT_EQ(report->correction.negative.num_trained, 28);
  const double rejected = numbers["correction/rejected_tokens"];
  EXPECT_GT(rejected, 0);
  EXPECT_NEAR(numbers["correction/negative_kept_fraction"], 1 - rejected / 28, 1e-12);
  EXPECT_NEAR(numbers["correction/kept_fraction_to_64"], 1 - rejected / 44, 1e-12);
  EXPECT_GT(numbers["correction/negative_mean_weight"], 0.9);
  EXPECT_EQ(numbers["correction/kept_fraction_over_4096"], 1) << "there are none";
}

TEST(TrainStepTest, AFilterInBypassLooksAtTheProximalPolicyOfTheFirstWeights) {
  TrainStepOptions options = GradientOptions();
  options.correction.mode = offpolicy::CorrectionMode::kBypass;
  options.correction.k3_token_max = 0.4;
  options.num_epochs = 3;
  options.optimizer.learning_rate = 3e-2;
  const auto report = MakeStep(options)->Run(OffPolicyGroups());
  ASSERT_THAT(report, IsOk());
  EXPECT_GT(report->correction.num_rejected, 0);
  EXPECT_LT(report->correction.num_rejected, 44);
  EXPECT_EQ(report->loss.num_tokens, 3 * (44 - report->correction.num_rejected))
      << "the same tokens in every epoch";
  EXPECT_EQ(report->correction.max_weight, 1);
}

TEST(TrainStepTest, Bug16AMaskedCompletionChangesNothing) {
  const auto without = MakeStep(GradientOptions()), with = MakeStep(GradientOptions());
  std::vector<ScoredGroup> groups = Groups();
  ASSERT_THAT(without->Run(groups), IsOk());
  AddCompletion(groups[0], std::vector<int32_t>(20, 5), 3)->set_masked(true);
  const auto report = with->Run(groups);
  ASSERT_THAT(report, IsOk());
  ExpectSameGradients(*without, *with);
  EXPECT_TRUE(report->proximal_logprobs[0].size() == 4 || report->proximal_logprobs[0][4].empty());
}

// What was given between two turns is context: the gradient is that of the turns as completions of
// their own, each behind all that came before it.
TEST(TrainStepTest, GivenTokensAreReadAndNotTrained) {
  std::vector<ScoredGroup> whole = {GroupWithPrompt(0, {3, 4, 5})};
  CutIntoTurns(AddCompletion(whole[0], {6, 7, 20, 21, 22, 8}, 0.5f, -3.5f), {2, 3, 1});
  std::vector<ScoredGroup> parts = {GroupWithPrompt(0, {3, 4, 5}),
                                    GroupWithPrompt(1, {3, 4, 5, 6, 7, 20, 21, 22})};
  AddCompletion(parts[0], {6, 7}, 0.5f, -3.5f);
  AddCompletion(parts[1], {8}, 0.5f, -3.5f);
  const auto one = MakeStep(GradientOptions()), other = MakeStep(GradientOptions());
  const auto scores = one->Score(whole).value(), part_scores = other->Score(parts).value();
  const std::vector<float>& of_whole = scores[0][0];
  ASSERT_EQ(of_whole.size(), 6u);
  EXPECT_NEAR(of_whole[0], part_scores[0][0][0], 1e-6);
  EXPECT_NEAR(of_whole[1], part_scores[0][0][1], 1e-6);
  EXPECT_NEAR(of_whole[5], part_scores[1][0][0], 1e-6);
  for (const size_t t : {2, 3, 4}) EXPECT_TRUE(std::isnan(of_whole[t])) << t;
  const StepReport report = one->Run(whole).value();
  EXPECT_EQ(report.num_tokens, 3);
  EXPECT_EQ(other->Run(parts).value().num_tokens, 3);
  ExpectSameGradients(*one, *other);
}

TEST(TrainStepTest, Bug20TheSameGroupsTwiceGiveTheSameGradient) {
  const auto once = MakeStep(GradientOptions()), twice = MakeStep(GradientOptions());
  std::vector<ScoredGroup> groups = Groups();
  ASSERT_THAT(once->Run(groups), IsOk());
  const std::vector<ScoredGroup> again = Groups();
  groups.insert(groups.end(), again.begin(), again.end());
  ASSERT_THAT(twice->Run(groups), IsOk());
  ExpectSameGradients(*once, *twice);
}

TEST(TrainStepTest, Bug21DroppedTokensLeaveTheDivisorUnlessAllAreAskedFor) {
  std::vector<ScoredGroup> groups = Groups(1, 2);  // 1 and 4 tokens
  auto* completion = groups[0].mutable_completions(1)->mutable_completion();
  for (const int t : {0, 1}) {
    completion->set_behaviour_logprobs(t, std::numeric_limits<float>::quiet_NaN());
  }
  TrainStepOptions options = GradientOptions();
  const auto kept = MakeStep(options);
  const auto report = kept->Run(groups);
  ASSERT_THAT(report, IsOk());
  EXPECT_EQ(report->loss.denominator, 3);
  EXPECT_EQ(report->correction.num_rejected, 2);
  EXPECT_EQ(report->drift.Get("num_nonfinite"), 2);
  options.correction.denominator = offpolicy::DenominatorKind::kAll;
  const auto all = MakeStep(options);
  EXPECT_EQ(all->Run(groups)->loss.denominator, 5);
  ExpectSameGradients(*all, *kept, 3.0 / 5);
}

TEST(TrainStepTest, Bug14TheRatioOfTheFirstMinibatchIsOneAndItsGradientIsNot) {
  const auto step = MakeStep(GradientOptions());
  const auto report = step->Run(Groups());
  ASSERT_THAT(report, IsOk());
  EXPECT_EQ(report->loss.ratio_max, 1);
  EXPECT_EQ(report->loss.clip_high + report->loss.clip_low, 0);
  EXPECT_GT(report->optimizer.grad_norm, 1e-3);
}

TEST(TrainStepTest, Bug15ProximalLogprobsStayThoseOfTheFirstWeights) {
  TrainStepOptions options = GradientOptions();
  const auto single = MakeStep(options);
  const auto first = single->Run(Groups());
  options.num_epochs = 2;
  options.optimizer.learning_rate = 3e-2;
  const auto step = MakeStep(options);
  const auto report = step->Run(Groups());
  ASSERT_THAT(report, IsOk());
  EXPECT_EQ(report->loss.num_updates, 2);
  EXPECT_GT(report->loss.ratio_max, 1.01) << "the second epoch's ratio must leave 1";
  EXPECT_EQ(report->proximal_logprobs, first->proximal_logprobs);
}

// With large updates, so that the weights of the second minibatch are others.
TEST(TrainStepTest, Bug15RecordedLogprobsOfLaterMinibatchesAreOfTheFirstWeightsInEveryMode) {
  using offpolicy::CorrectionMode;
  for (const CorrectionMode mode :
       {CorrectionMode::kDecoupled, CorrectionMode::kBypass, CorrectionMode::kMeasureOnly}) {
    TrainStepOptions options = GradientOptions();
    options.correction.mode = mode;
    options.num_minibatches = 2;
    options.microbatch_tokens = 15;
    options.optimizer.learning_rate = 3e-2;
    const auto step = MakeStep(options);
    const auto before = step->Score(OffPolicyGroups());
    ASSERT_THAT(before, IsOk());
    const auto report = step->Run(OffPolicyGroups());
    ASSERT_THAT(report, IsOk());
    EXPECT_EQ(report->loss.num_updates, 2);
    EXPECT_EQ(report->proximal_logprobs, *before);
    EXPECT_NE(*step->Score(OffPolicyGroups()), *before);
    // The drift is of the same log-probs.
    const auto alone = MakeStep(GradientOptions())->Run(OffPolicyGroups());
    EXPECT_NEAR(report->drift.Get("mean_delta"), alone->drift.Get("mean_delta"), 1e-6);
  }
}

TEST(TrainStepTest, Bug30LogprobsAreOfTheTemperedPolicy) {
  const auto cold = MakeStep(GradientOptions(), 0.7), warm = MakeStep(GradientOptions(), 1);
  const auto a = cold->Run(Groups()), b = warm->Run(Groups());
  EXPECT_GT(std::abs(a->proximal_logprobs[0][1][0] - b->proximal_logprobs[0][1][0]), 1e-3);
}

TEST(TrainStepTest, Bug26BypassUsesTheBehaviourPolicyOnce) {
  // Weight 1 and ratio target / behaviour: never their product, which would be the ratio squared.
  TrainStepOptions options = GradientOptions();
  options.correction.mode = offpolicy::CorrectionMode::kBypass;
  options.loss.objective.clip_low = 1;
  options.loss.objective.clip_high = 1e6;
  const auto step = MakeStep(options);
  const auto report = step->Run(Groups());
  ASSERT_THAT(report, IsOk());
  EXPECT_EQ(report->correction.max_weight, 1);
  EXPECT_NEAR(report->loss.ratio_sum / 44, report->drift.Get("mean_w"), 1e-5);
  EXPECT_GT(std::abs(report->drift.Get("mean_delta")), 0.01) << "the gap is still measured";
}

TEST(TrainStepTest, Bug35TheReferenceIsFrozenAndHasWeightsOfItsOwn) {
  TrainStepOptions options = GradientOptions();
  options.loss.kl_coefficient = 0.1;
  options.optimizer.learning_rate = 3e-2;
  const auto step = MakeStep(options, 1, /*with_reference=*/true);
  const auto first = step->Run(Groups());
  ASSERT_THAT(first, IsOk());
  EXPECT_NEAR(first->loss.k3, 0, 1e-6) << "before the first update both are the same";
  const auto second = step->Run(Groups());
  EXPECT_GT(second->loss.k3 / 44, 1e-4) << "the policy moved and the reference did not";
}

TEST(TrainStepTest, Bug22TheKlPullsBackToTheReference) {
  TrainStepOptions options = GradientOptions();
  options.optimizer = {.learning_rate = 1e-2, .max_grad_norm = 0};
  options.loss.kl_coefficient = 1;
  const auto step = MakeStep(options, 1, /*with_reference=*/true);
  ASSERT_THAT(step->Run(Groups()), IsOk());
  std::vector<ScoredGroup> without_reward = Groups();
  for (ScoredGroup& group : without_reward) {
    for (auto& c : *group.mutable_completions()) c.set_advantage(0);
  }
  const double before = step->Run(without_reward)->loss.k3;
  for (int i = 0; i < 15; ++i) ASSERT_THAT(step->Run(without_reward), IsOk());
  EXPECT_LT(step->Run(without_reward)->loss.k3, before / 2);
}

TEST(TrainStepTest, LearnsToDoWhatIsRewarded) {
  std::vector<ScoredGroup> groups = {GroupWithPrompt(0, {3, 4})};
  AddCompletion(groups[0], {7, 2}, 1);
  AddCompletion(groups[0], {8, 2}, -1);
  TrainStepOptions options;
  options.optimizer.learning_rate = 1e-2;
  const auto step = MakeStep(options);
  const auto first = step->Run(groups);
  for (int i = 0; i < 5; ++i) ASSERT_THAT(step->Run(groups), IsOk());
  const auto last = step->Run(groups);
  EXPECT_GT(last->proximal_logprobs[0][0][0], first->proximal_logprobs[0][0][0] + 0.2f);
  EXPECT_LT(last->proximal_logprobs[0][1][0], first->proximal_logprobs[0][1][0]);
}

TEST(TrainStepTest, SkipsAnUpdateWhoseGradientIsNotFiniteAndKeepsTheWeights) {
  TrainStepSetup setup{.config = ToyConfig()};
  setup.weights = ToyWeights(setup.config);
  // A weight of 1e38 overflows in the product.
  for (HostTensor& tensor : setup.weights) {
    if (tensor.spec.name != "model.layers.0.mlp.down_proj.weight") continue;
    tensor = ::tandem::testing::ToyTensor(
        tensor.spec, std::vector<float>(static_cast<size_t>(tensor.spec.num_elements()), 1e38f));
  }
  auto step = TrainStep::Create(setup, GradientOptions()).value();
  const DigestMap before = Digests(*step);
  const auto report = step->Run(Groups());
  ASSERT_THAT(report, IsOk());
  EXPECT_FALSE(report->skip_reason.empty());
  EXPECT_EQ(report->optimizer.skipped_updates, 1);
  EXPECT_EQ(Digests(*step), before);
  EXPECT_EQ(step->num_updates(), 0);
}

// After an ordinary step, so that there are moments that could still move the weights.
TEST(TrainStepTest, AStepInWhichEveryTokenIsRefusedIsANoOpWhateverTheDenominator) {
  using offpolicy::DenominatorKind;
  using offpolicy::Normalisation;
  std::vector<ScoredGroup> refused = {GroupWithPrompt(0, {3})};
  AddCompletion(refused[0], {7, 2}, 1, std::numeric_limits<float>::quiet_NaN());
  for (const DenominatorKind denominator : {DenominatorKind::kKept, DenominatorKind::kAll}) {
    for (const Normalisation normalisation :
         {Normalisation::kToken, Normalisation::kSequence, Normalisation::kConstant}) {
      TrainStepOptions options;
      options.optimizer.weight_decay = 0.1;
      options.correction.denominator = denominator;
      options.loss.objective.normalisation = normalisation;
      options.loss.objective.constant_length = 16;
      const auto step = MakeStep(options);
      ASSERT_THAT(step->Run(Groups()), IsOk());
      const DigestMap weights = Digests(*step);
      std::map<std::string, std::vector<float>> moments = Gradients(*step);
      const auto report = step->Run(refused);
      ASSERT_THAT(report, IsOk());
      EXPECT_NE(report->skip_reason.find("every token"), std::string::npos);
      EXPECT_EQ(report->optimizer.skipped_updates, 1);
      EXPECT_EQ(Digests(*step), weights);
      EXPECT_EQ(Gradients(*step), moments) << "first moments";
      EXPECT_EQ(step->num_updates(), 1) << "of bias correction and learning rate";
    }
  }
}

TEST(TrainStepTest, CheckpointedActivationsMakeTheSameStepBitForBit) {
  TrainStepSetup setup{.config = ToyConfig(), .checkpoint_activations = true};
  setup.weights = ToyWeights(setup.config);
  const auto checkpointed = TrainStep::Create(setup, TrainStepOptions()).value();
  const auto kept = MakeStep(TrainStepOptions());
  for (const auto& step : {checkpointed.get(), kept.get()})
    ASSERT_THAT(step->Run(Groups()), IsOk());
  EXPECT_EQ(Digests(*checkpointed), Digests(*kept));
}

TEST(TrainStepTest, GoesOnBitwiseFromASavedState) {
  TrainStepOptions options;
  options.optimizer.learning_rate = 1e-3;
  const auto straight = MakeStep(options), before = MakeStep(options), after = MakeStep(options);
  for (int i = 0; i < 2; ++i) {
    ASSERT_THAT(straight->Run(Groups()), IsOk());
    ASSERT_THAT(before->Run(Groups()), IsOk());
  }
  ASSERT_THAT(after->Restore(before->Masters(), before->OptimizerState(), before->num_updates()),
              IsOk());
  ASSERT_THAT(straight->Run(Groups()), IsOk());
  ASSERT_THAT(after->Run(Groups()), IsOk());
  EXPECT_EQ(Digests(*straight), Digests(*after));
}

TEST(TrainStepTest, ReportsEveryNumberOfTheRunDirectory) {
  const auto step = MakeStep(GradientOptions(), 1, /*with_reference=*/true);
  const auto report = step->Run(Groups());
  std::map<std::string, double> numbers;
  for (const auto& [name, value] : NamedNumbers(*report)) numbers[name] = value;
  for (const char* name :
       {"drift/k1", "correction/mean_weight", "correction/capped_share", "loss/policy", "loss/kl",
        "loss/ratio_mean", "loss/entropy", "loss/denominator", "loss/num_updates",
        "kl_reference/k3", "optimizer/learning_rate", "optimizer/grad_norm",
        "optimizer/skipped_updates", "time/proximal"}) {
    EXPECT_TRUE(numbers.contains(name)) << name;
  }
  EXPECT_EQ(numbers["loss/num_tokens"], 44);  // twice 1 + 4 + 7 + 10
  int64_t counted = 0;
  for (const int64_t count : report->correction.hist_raw) counted += count;
  EXPECT_EQ(counted, 44);
  EXPECT_NEAR(report->advantage_mean, 0.15, 1e-6);
}

TEST(TrainStepTest, RefusesAKlWithoutAReferenceAndOptionsThatContradict) {
  TrainStepSetup setup{.config = ToyConfig()};
  setup.weights = ToyWeights(setup.config);
  TrainStepOptions options;
  options.loss.kl_coefficient = 0.1;
  EXPECT_THAT(TrainStep::Create(setup, options),
              FailsWith(absl::StatusCode::kInvalidArgument, "there is no reference policy"));
  options = {};
  options.loss.objective.dual_clip = 0.5;
  EXPECT_THAT(TrainStep::Create(setup, options),
              FailsWith(absl::StatusCode::kInvalidArgument, "loss.dual_clip is 0.5"));
  options = {};
  options.loss.kl_place = KlPlace::kReward;
  options.loss.kl_ratio_weighted = true;
  EXPECT_THAT(TrainStep::Create(setup, options),
              FailsWith(absl::StatusCode::kInvalidArgument, "loss.kl_ratio_weighted"));
  options.loss.kl_ratio_weighted = false;
  for (const KlEstimator estimator : {KlEstimator::kK2, KlEstimator::kK3}) {
    options.loss.kl_estimator = estimator;
    EXPECT_THAT(TrainStep::Create(setup, options),
                FailsWith(absl::StatusCode::kInvalidArgument,
                          "Leave loss.kl_estimator at auto, which is k1 there"));
  }
  options.loss.kl_estimator = KlEstimator::kK1;
  EXPECT_THAT(TrainStep::Create(setup, options).status(), IsOk());
}

TEST(TrainStepScore, LiveScoresAreTheProximalLogProbsOfTheStepThatFollows) {
  auto groups = Groups();
  groups[0].mutable_completions(1)->set_masked(true);
  const auto step = MakeStep(GradientOptions(), 0.8);
  const auto before = step->Score(groups);
  ASSERT_THAT(before, IsOk());
  const auto report = step->Run(groups);
  ASSERT_THAT(report, IsOk());
  EXPECT_EQ(*before, report->proximal_logprobs);
  EXPECT_TRUE((*before)[0][1].empty()) << "masked";
  const auto after = step->Score(groups);
  ASSERT_THAT(after, IsOk());
  EXPECT_NE(*after, *before);
  // The weights it had, from outside.
  const auto again = step->ScoreUnder(ToyWeights(ToyConfig()), Rounding::kNearest, groups);
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(*again, *before);
}

TEST(StepReport, TellsWhatADeviceHeldFromWhatPassed) {
  StepReport report;
  report.memory = {.masters = 400, .gradients = 300, .reference = 20};
  report.optimizer.state_bytes = 1000;
  const auto number = [&](const std::string& name) -> std::optional<double> {
    for (const auto& [of, value] : NamedNumbers(report)) {
      if (of == name) return value;
    }
    return std::nullopt;
  };
  EXPECT_EQ(number("memory/masters_bytes"), 400);
  EXPECT_EQ(number("memory/gradients_bytes"), 300);
  EXPECT_EQ(number("memory/reference_bytes"), 20);
  EXPECT_EQ(number("memory/device_peak_bytes"), std::nullopt);
  EXPECT_EQ(TransientBytes(report), 0);
  report.memory.device = CudaPeaks{.allocated = 5000, .reserved = 6000};
  EXPECT_EQ(number("memory/device_peak_bytes"), 5000);
  EXPECT_EQ(number("memory/device_reserved_bytes"), 6000);
  EXPECT_EQ(number("memory/device_transient_bytes"), 5000 - 400 - 300 - 20 - 1000);
}

TEST(TrainStepScore, TheDistanceIsThatOfAllElements) {
  const auto step = MakeStep(GradientOptions());
  const std::vector<HostTensor> start = ToyWeights(ToyConfig());
  EXPECT_EQ(*step->DistanceFrom(start), 0);
  ASSERT_THAT(step->Run(Groups()), IsOk());
  double squares = 0;
  const auto masters = MastersOf(*step);
  for (size_t i = 0; i < start.size(); ++i) {
    const auto* a = reinterpret_cast<const float*>(start[i].bytes.data());
    const auto* b = reinterpret_cast<const float*>(masters[i].bytes.data());
    for (int64_t k = 0; k < start[i].spec.num_elements(); ++k) {
      squares += std::pow(static_cast<double>(b[k]) - a[k], 2);
    }
  }
  EXPECT_GT(squares, 0);
  EXPECT_NEAR(*step->DistanceFrom(start), std::sqrt(squares), 1e-6 * std::sqrt(squares));
  EXPECT_THAT(step->DistanceFrom({}), FailsWith(absl::StatusCode::kInvalidArgument, "0 tensors"));
}

}  // namespace
}  // namespace tandem::trainer
