#include "drift_lab/calibration/calibration_tables.h"

#include <gtest/gtest.h>

#include <map>

namespace tandem::drift {
namespace {

// A trial in which `cause` was named with that strength and interval.
TrialResult Named(const std::string& cause, double parameter, double low, double high) {
  TrialResult result{.num_tokens = 100,
                     .mean_abs = {.value = 1, .low = 0.5, .high = 1.5},
                     .k3 = {.value = 1, .low = 0.5, .high = 1.5},
                     .seconds = 60};
  if (!cause.empty())
    result.named.push_back({cause, 1, {.value = parameter, .low = low, .high = high}});
  return result;
}

const InjectorRow& RowOf(const CalibrationTables& tables, const std::string& name) {
  for (const InjectorRow& row : tables.injectors) {
    if (row.name == name) return row;
  }
  throw std::runtime_error("no row " + name);
}

// Noise of 0.05 is strength 1. Estimates 0.5 and 1 at those strengths, 0 without a fault: the line
// through (0, 0), (0.5, 0.5), (1, 1) has slope 1; one of the two intervals holds its truth.
TEST(CalibrationTablesTest, SlopeAndCoverageAreOfTheStrengthInNaturalSizes) {
  Trials trials;
  trials[{"none", 0, 1}] = Named("", 0, 0, 0);
  trials[{"logit_noise", 0.5, 1}] = Named("logit_noise", 0.025, 0.02, 0.03);
  trials[{"logit_noise", 1, 1}] = Named("logit_noise", 0.05, 0.052, 0.06);
  const CalibrationTables tables = MakeTables(trials);
  const InjectorRow& row = RowOf(tables, "logit_noise");
  EXPECT_NEAR(row.slope, 1, 1e-12);
  EXPECT_NEAR(row.intercept, 0, 1e-12);
  EXPECT_EQ(row.covered.successes, 1);
  EXPECT_EQ(row.covered.trials, 2);
  EXPECT_EQ(row.top.successes, 1);  // only natural strength counts
  EXPECT_EQ(row.top.trials, 1);
  EXPECT_EQ(row.smallest_found, 0.5);
  EXPECT_EQ(tables.healthy.successes, 1);
}

TEST(CalibrationTablesTest, AStrengthThatIsNotNamedCountsAsZeroAndEndsWhatIsFound) {
  Trials trials;
  trials[{"temperature", 1, 1}] = Named("", 0, 0, 0);
  trials[{"temperature", 2, 1}] = Named("temperature", 0.8, 0.8, 0.8);
  const InjectorRow row = RowOf(MakeTables(trials), "temperature");
  EXPECT_NEAR(row.slope, 2, 1e-9);  // through (1, 0) and (2, 2)
  EXPECT_EQ(row.smallest_found, 2);
  EXPECT_EQ(row.named.successes, 1);
}

TEST(CalibrationTablesTest, FalseNamesAndConfusionAreOfInjectableCausesOnly) {
  Trials trials;
  trials[{"none", 0, 1}] = Named("kernels", 0, 0, 0);
  trials[{"none", 0, 2}] = Named("shift", 0.1, 0, 0.2);
  trials[{"kv_bits", 1, 1}] = Named("logit_noise", 0.1, 0.05, 0.2);
  const CalibrationTables tables = MakeTables(trials);
  EXPECT_EQ(tables.healthy.successes, 1);
  EXPECT_EQ(tables.false_names.at("shift").successes, 1);
  EXPECT_EQ(tables.false_names.at("shift").trials, 2);
  EXPECT_EQ(tables.confusion.at("kv_bits").at("logit_noise"), 1);
  EXPECT_EQ(RowOf(tables, "kv_bits").top.successes, 0);
}

TEST(CalibrationTablesTest, PairsNeedOneOfTheTwoOnTopAndUnmodelledFaultsNone) {
  Trials trials;
  trials[{"temperature+top_p", 1, 1}] = Named("top_p", 0.95, 0.9, 0.96);
  trials[{"temperature+top_p", 1, 2}] = Named("shift", 0.1, 0, 0.2);
  trials[{"rotary_base", 1, 1}] = Named("", 0, 0, 0);
  trials[{"rotary_base", 1, 1}].open = true;
  trials[{"rotary_base", 1, 2}] = Named("", 0, 0, 0);  // says nothing at all
  const CalibrationTables tables = MakeTables(trials);
  ASSERT_EQ(tables.pairs.size(), 1u);
  EXPECT_EQ(tables.pairs[0].top.successes, 1);
  EXPECT_EQ(tables.pairs[0].both.successes, 0);
  ASSERT_EQ(tables.unmodelled.size(), 1u);
  EXPECT_EQ(tables.unmodelled[0].abstained.successes, 1);
  EXPECT_EQ(tables.unmodelled[0].abstained.trials, 2);
}

// Amounts 1 and 3 have mean 2: the interval of neither holds it.
TEST(CalibrationTablesTest, AmountsAreHeldAgainstTheMeanOfTheirStrength) {
  Trials trials;
  trials[{"top_k", 1, 1}] = Named("top_k", 50, 49, 50);
  trials[{"top_k", 1, 2}] = Named("top_k", 50, 49, 50);
  trials[{"top_k", 1, 2}].mean_abs = {.value = 3, .low = 1.9, .high = 3.5};
  const InjectorRow row = RowOf(MakeTables(trials), "top_k");
  EXPECT_EQ(row.mean_abs_covered.successes, 1);
  EXPECT_EQ(row.k3_covered.successes, 2);
}

TEST(CalibrationPageTest, WhatMissesItsTargetStandsOut) {
  CalibrationReport report{
      .date = "2026-11-22", .commit = "abc", .command = "tandem drift calibrate"};
  Trials trials;
  for (uint64_t seed = 1; seed <= 60; ++seed) trials[{"kv_bits", 1, seed}] = Named("", 0, 0, 0);
  report.tables = MakeTables(trials);
  const std::string page = ToMarkdown(report);
  EXPECT_NE(page.find("| `kv_bits` | **0.0 % (0 of 60; 0.0 to 6.0)** (missed) |"),
            std::string::npos)
      << page;
  EXPECT_NE(page.find("2026-11-22, commit abc"), std::string::npos);
}

// Reads the parameter that an injector of `part` sets.
double ParameterOf(Part part, const rollout::EngineFaults& faults) {
  const std::map<Part, double> parameters = {
      {Part::kLogitNoise, faults.logit_noise},
      {Part::kHeavyTail, faults.heavy_tail_probability},
      {Part::kShift, faults.shift_fraction},
      {Part::kStalePrefix, faults.stale_prefix_fraction},
      {Part::kTemperature, faults.temperature},
      {Part::kTopP, faults.top_p},
      {Part::kTopK, static_cast<double>(faults.top_k)},
      {Part::kMinP, faults.min_p},
      {Part::kInterpolation, faults.weight_interpolation},
      {Part::kTensor, faults.weight_interpolation},
      {Part::kOtherVersion, static_cast<double>(faults.stale_versions)},
      {Part::kBodyBits, static_cast<double>(faults.body_bits)},
      {Part::kHeadBits, static_cast<double>(faults.head_bits)},
      {Part::kKvBits, static_cast<double>(faults.kv_bits)},
      {Part::kRotaryBits, static_cast<double>(faults.rotary_bits)},
      {Part::kKvQuantisation, static_cast<double>(faults.kv_quant_bits)}};
  return parameters.at(part);
}

TEST(InjectorsTest, EveryStrengthComesBackFromTheParameterItSets) {
  for (const Injector& injector : AllInjectors()) {
    if (injector.kind == ParameterKind::kSwitch) continue;
    for (const double strength : injector.strengths) {
      Fault fault;
      injector.Set(strength, fault);
      EXPECT_FALSE(rollout::DescribeFaults(fault.engine).empty()) << injector.name;
      EXPECT_NEAR(injector.StrengthOfValue(ParameterOf(injector.part, fault.engine)), strength,
                  0.01 * strength)
          << injector.name << " " << strength;
    }
  }
}

TEST(InjectorsTest, EveryPlannedTrialHasAFaultAndOnlyTrialsWithoutAFaultHaveNone) {
  for (const PlannedTrial& trial : PlanTrials({.captures = 8, .healthy = 1})) {
    const auto fault = FaultOf(trial);
    ASSERT_TRUE(fault.ok()) << trial.fault;
    const bool healthy =
        fault->engine == rollout::EngineFaults() && fault->unmodelled == Unmodelled::kNone;
    EXPECT_EQ(healthy, trial.fault == "none") << trial.fault;
  }
  EXPECT_FALSE(FaultOf({"gremlins", 1, 1}).ok());
}

}  // namespace
}  // namespace tandem::drift
