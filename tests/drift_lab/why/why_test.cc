#include "drift_lab/why/why.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "drift_lab/pages/why_report.h"

namespace tandem::drift {
namespace {

using offpolicy::Interval;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// The measurements of a capture that passed the consistency checks: record and replay agree, and no
// token lags.
struct Measured {
  Attribution attribution;
  TrainerExperiments trainer;
  RunRatios run;

  Measured() {
    attribution.capture.manifest.step = 7;
    attribution.capture.weight_version = {0};
    attribution.by_sequence.numbers = {{.name = "calibration_z"},
                                       {.name = "max_abs_delta", .interval = {.value = 0.5}}};
    attribution.ablation.diagnosis.before = {.num_tokens = 100};
    attribution.ablation.proximal_recorded = true;
    trainer.temperature.recorded = true;
    trainer.twice.num_tokens = 100;
    run.run = "runs/small";
  }

  // A part with this share of the mean square; it is named if the interval excludes 0.
  void Part(drift::Part part, double mean_abs, Interval share) {
    PartShare of{.part = part, .mean_abs = {.value = mean_abs}};
    of.shares[kSquare].share = share;
    attribution.shares.parts.push_back(of);
    attribution.shares.total_mean_abs.value += mean_abs;
  }
  void Step(int64_t updates, double mean, double max) {
    run.steps.push_back({.step = 7, .num_updates = updates, .mean = mean, .max = max});
  }
  Why Explain() {
    attribution.verdict = Judge(attribution.shares, attribution.ablation.diagnosis,
                                attribution.ablation.sampler, /*calibration_z=*/0);
    return ExplainRatios(attribution, trainer, run);
  }
};

std::vector<std::string> ThatAreIt(const Why& why, Finding finding = Finding::kIsIt) {
  std::vector<std::string> names;
  for (const Experiment& e : why.experiments) {
    if (e.finding == finding) names.push_back(e.name);
  }
  return names;
}

const Experiment& Of(const Why& why, const std::string& name) {
  return *std::ranges::find(why.experiments, name, &Experiment::name);
}

TEST(WhyTest, CausesStandInTheAnswerInOrderOfTheirShares) {
  Measured m;
  m.Part(Part::kCast, 1e-3, {.value = 0.3, .low = 0.2, .high = 0.4});
  m.Part(Part::kBody, 1e-3, {.value = 0.45, .low = 0.4, .high = 0.5});
  m.Part(Part::kKv, 1e-3, {.value = 0.25, .low = 0.2, .high = 0.3});
  m.Step(1, 1, 1);
  const Why why = m.Explain();
  EXPECT_THAT(ThatAreIt(why), ElementsAre("cast", "precision"));
  EXPECT_NEAR(Of(why, "precision").share, 0.7, 1e-12);
  EXPECT_EQ(why.trainer_over_server.state, RatioState::kNotOne);
  EXPECT_THAT(why.trainer_over_server.sentence,
              HasSubstr("precision: the engine rounds what the trainer does not (70 % of the mean "
                        "square) and the cast"));
  EXPECT_EQ(why.target_over_proximal.state, RatioState::kOne);
}

TEST(WhyTest, AnIntervalThatHoldsZeroIsNeitherYesNorNoAndASmallShareIsNo) {
  Measured m;
  m.Part(Part::kKernels, 1e-3, {.value = 0.9, .low = -0.1, .high = 1.2});
  m.Part(Part::kLayout, 1e-3, {.value = 0.01, .low = 0.005, .high = 0.02});
  const Why why = m.Explain();
  EXPECT_THAT(ThatAreIt(why, Finding::kCannotTell), ElementsAre("kernels", "later updates"));
  EXPECT_EQ(Of(why, "packing").finding, Finding::kIsNot);
  EXPECT_THAT(Of(why, "kernels").to_do, HasSubstr("interval is too wide"));
  EXPECT_THAT(why.trainer_over_server.sentence,
              HasSubstr("no cause can be named yet; the most is in kernels"));
}

TEST(WhyTest, ATemperatureOfTheTrainersRecordIsCalledByTheMistakeThatMakesIt) {
  const std::pair<double, const char*> cases[] = {{1, "forgot the temperature"},
                                                  {0.49, "applied the temperature twice"},
                                                  {0.85, "scored at another temperature"}};
  for (const auto& [fitted, words] : cases) {
    Measured m;
    m.Part(Part::kTrainerRecord, 0.1, {.value = 1, .low = 0.9, .high = 1.1});
    m.trainer.temperature = {.recorded = true,
                             .claimed = 0.7,
                             .fitted = fitted,
                             .before = {.mean_abs = 0.1, .matched = 0, .num_tokens = 100},
                             .after = {.mean_abs = 1e-6, .matched = 1, .num_tokens = 100}};
    const Why why = m.Explain();
    EXPECT_THAT(ThatAreIt(why), ElementsAre("temperature"));
    EXPECT_THAT(why.trainer_over_server.sentence, HasSubstr(words));
    EXPECT_EQ(Of(why, "trainer's record").finding, Finding::kIsNot) << "it is explained";
  }
}

TEST(WhyTest, ATrainersRecordThatNoTemperatureGivesBackIsLeftOpen) {
  Measured m;
  m.Part(Part::kTrainerRecord, 0.1, {.value = 1, .low = 0.9, .high = 1.1});
  m.trainer.temperature = {.recorded = true,
                           .claimed = 0.7,
                           .fitted = 0.8,
                           .before = {.mean_abs = 0.1, .matched = 0, .num_tokens = 100},
                           .after = {.mean_abs = 0.08, .matched = 0.1, .num_tokens = 100}};
  const Why why = m.Explain();
  EXPECT_TRUE(ThatAreIt(why).empty());
  EXPECT_EQ(Of(why, "trainer's record").finding, Finding::kCannotTell);
  EXPECT_EQ(Of(why, "temperature").finding, Finding::kIsNot);
}

TEST(WhyTest, ATrainerThatAnswersTwiceDifferentlyIsRandomAndMovesBothRatios) {
  Measured m;
  m.trainer.twice = {.num_tokens = 100, .again_max_abs = 0.02, .update_max_abs = 0.03};
  m.trainer.dropout = {"attention_dropout 0.1"};
  m.Step(1, 1.01, 1.03);
  const Why why = m.Explain();
  EXPECT_THAT(ThatAreIt(why), ElementsAre("train mode", "first update"));
  EXPECT_THAT(why.trainer_over_server.sentence, HasSubstr("the trainer is random"));
  EXPECT_THAT(why.target_over_proximal.sentence, HasSubstr("the first update already"));
  EXPECT_THAT(Of(why, "train mode").result,
              HasSubstr("attention_dropout 0.1, which neither side applies"));
}

TEST(WhyTest, AnUpdateThatComputesOtherwiseThanAProximalPassIsTrainMode) {
  Measured m;
  m.trainer.twice = {.num_tokens = 100, .again_max_abs = 0, .update_max_abs = 0.03};
  EXPECT_THAT(Of(m.Explain(), "train mode").cause,
              HasSubstr("train mode: an update computes otherwise"));
}

TEST(WhyTest, OneUpdateWhoseRatioIsNot1ThoughBothPassesAgreeHereIsNotExplained) {
  Measured m;
  m.Step(1, 0.9, 1.2);
  const Why why = m.Explain();
  EXPECT_EQ(why.target_over_proximal.state, RatioState::kNotOne);
  EXPECT_THAT(why.target_over_proximal.sentence, HasSubstr("no experiment says why"));
  EXPECT_EQ(Of(why, "first update").finding, Finding::kCannotTell);
}

TEST(WhyTest, SeveralUpdatesAreTheReasonUnlessNothingMoved) {
  Measured moved;
  moved.Step(4, 0.99, 1.4);
  EXPECT_THAT(ThatAreIt(moved.Explain()), ElementsAre("later updates"));
  EXPECT_THAT(moved.Explain().target_over_proximal.sentence,
              HasSubstr("later minibatches: 4 updates a step"));
  Measured still;
  still.Step(4, 1, 1);
  EXPECT_EQ(still.Explain().target_over_proximal.state, RatioState::kOne);
  EXPECT_THAT(Of(still.Explain(), "later updates").result, HasSubstr("weights did not move"));
}

TEST(WhyTest, InBypassModeTheRatioOfTheLossHoldsTheMismatchAndSeveralUpdatesCannotBeToldFromIt) {
  Measured m;
  m.run.bypass = true;
  m.Step(4, 0.99, 1.4);
  const Why why = m.Explain();
  EXPECT_THAT(ThatAreIt(why), ElementsAre("centre"));
  EXPECT_THAT(ThatAreIt(why, Finding::kCannotTell), ElementsAre("later updates"));
  EXPECT_THAT(why.target_over_proximal.sentence, HasSubstr("holds all of pi/mu"));
}

TEST(WhyTest, ASamplerFaultThatNoRatioShowsIsNamedBesideARatioOfOne) {
  Measured m;
  m.attribution.ablation.sampler.named =
      DiagnosedCause{.part = Part::kTemperature,
                     .label = "tokens drawn at temperature 0.9 times the recorded one"};
  const Why why = m.Explain();
  EXPECT_EQ(why.trainer_over_server.state, RatioState::kOne);
  EXPECT_THAT(why.trainer_over_server.sentence,
              HasSubstr("No ratio shows this: a temperature the server did not disclose"));
}

TEST(WhyTest, ACaptureThatIsNotComparableGivesItsFaultAndNoNumberOfTheMismatch) {
  Measured m;
  m.attribution.findings = {
      {.fault = DiscreteFault::kTokensDiffer, .message = "1 of 16 completions"}};
  const Why why = m.Explain();
  EXPECT_EQ(why.trainer_over_server.state, RatioState::kUnknown);
  EXPECT_THAT(why.trainer_over_server.sentence, HasSubstr("tokens_differ"));
  EXPECT_THAT(why.answer(), Not(HasSubstr("mean abs")));
}

TEST(WhyTest, ExperimentsThatAskForTheSameThingShareALineAndLinesFitTheTerminal) {
  Measured m;
  m.Part(Part::kCast, 1e-3, {.value = 0.5, .low = 0.4, .high = 0.6});
  m.Part(Part::kBody, 1e-3, {.value = 0.5, .low = 0.4, .high = 0.6});
  WhyReport report{.target = {.capture = "c"}, .why = m.Explain()};
  const std::string table = WhyTable(report);
  EXPECT_THAT(table, HasSubstr("  cast, precision: nothing is broken"));
  std::istringstream lines(table);
  std::string line;
  std::getline(lines, line);  // the answers
  std::getline(lines, line);
  while (std::getline(lines, line)) EXPECT_LE(line.size(), 100u) << line;
}

TEST(DropoutFieldsTest, NamesFieldsThatAskForDropoutAndNotThoseThatAreZeroOrNoNumber) {
  EXPECT_THAT(
      DropoutFields(
          R"({"attention_dropout": 0.1, "hidden_dropout": 0.0, "dropout": null, "size": 3})"),
      ElementsAre("attention_dropout 0.1"));
  EXPECT_TRUE(DropoutFields("not json").empty());
}

}  // namespace
}  // namespace tandem::drift
