// The studies on runs made up by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "drift_lab/phase/collapse_prediction.h"
#include "drift_lab/phase/phase_report.h"
#include "drift_lab/phase/phase_table.h"
#include "tests/support/temp_dir.h"

namespace tandem::drift {
namespace {

using ::tandem::testing::TempDir;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr int kRows = 20;  // steps 0 to 95

// A run whose k3 is `low` until `rises_at` and 1 from there on; everything else is flat.
RunResult MadeUp(double low, int rises_at, int halved_at) {
  RunResult run;
  run.halved_at = halved_at;
  for (int row = 0; row < kRows; ++row) {
    TraceRow values{};
    At(values, Watched::kEss) = 1;
    At(values, Watched::kMeanW) = 1;
    At(values, Watched::kReward) = 0.5;
    At(values, Watched::kGradientNorm) = 0.1;
    At(values, Watched::kEntropy) = 1;
    At(values, Watched::kK3) = row * kTraceStride >= rises_at ? 1 : low;
    run.trace.push_back(values);
  }
  return run;
}

const PredictorQuality& QualityOf(const CollapsePrediction& study, Predictor predictor) {
  return study.predictors[static_cast<size_t>(predictor)];
}

class ToyPredictionTest : public ::testing::Test {
 protected:
  // Two seeds; in each a run that collapses at step 60 with k3 high from step 30 on, and two
  // healthy ones.
  ToyPredictionTest() {
    for (int seed = 1; seed <= 2; ++seed) {
      runs_.push_back(MadeUp(0.1, 30, 60));
      runs_.push_back(MadeUp(0.1, 1000, -1));
      runs_.push_back(MadeUp(0.2, 1000, -1));
    }
    for (size_t i = 0; i < runs_.size(); ++i) {
      watched_.push_back({i < 3 ? 1 : 2, &runs_[i]});
    }
  }

  std::vector<RunResult> runs_;
  std::vector<WatchedRun> watched_;
};

TEST_F(ToyPredictionTest, CountsWhatCollapsedAndHowLate) {
  const CollapsePrediction study = StudyPrediction(watched_);
  EXPECT_EQ(study.num_collapsed, 2);
  EXPECT_EQ(study.num_healthy, 4);
  EXPECT_EQ(study.num_late_enough[0], 2);  // 10
  EXPECT_EQ(study.num_late_enough[3], 0);  // 80 steps before step 60 there was no run yet
}

// 10 and 20 steps before, k3 is above both healthy runs; 40 before, at .1, it ties with one and is
// under the other: (1/2 + 0) / 2.
TEST_F(ToyPredictionTest, TheAucComparesAtEqualSteps) {
  const CollapsePrediction study = StudyPrediction(watched_);
  const PredictorQuality& k3 = QualityOf(study, Predictor::kK3);
  EXPECT_EQ(k3.auc[0].mean, 1);
  EXPECT_EQ(k3.auc[1].mean, 1);
  EXPECT_EQ(k3.auc[2].mean, 0.25);
  EXPECT_TRUE(std::isnan(k3.auc[3].mean));
  EXPECT_EQ(QualityOf(study, Predictor::kEntropyRise).auc[0].mean, 0.5);  // flat everywhere
}

// The threshold is .2, the highest of the other seed's healthy runs; the smoothed k3 passes it at
// step 30, with (.1 + 1) / 2.
TEST_F(ToyPredictionTest, TheAlarmLeadsTheCollapseByTheStepsBetween) {
  const CollapsePrediction study = StudyPrediction(watched_);
  const PredictorQuality& k3 = QualityOf(study, Predictor::kK3);
  EXPECT_EQ(k3.announced.mean, 1);
  EXPECT_EQ(k3.false_alarms.mean, 0);
  EXPECT_EQ(k3.lead_median, 30);
  const PredictorQuality& entropy = QualityOf(study, Predictor::kEntropyRise);
  EXPECT_EQ(entropy.announced.mean, 0);
  EXPECT_TRUE(std::isnan(entropy.lead_median));
}

TEST_F(ToyPredictionTest, AHealthyRunAboveTheOtherHalfIsAFalseAlarm) {
  runs_[4] = MadeUp(0.7, 1000, -1);  // seed 2: the even half's threshold is .7, the odd half's .2
  const CollapsePrediction study = StudyPrediction(watched_);
  const PredictorQuality& k3 = QualityOf(study, Predictor::kK3);
  EXPECT_EQ(k3.false_alarms.mean, 0.25);
  EXPECT_EQ(k3.announced.mean, 1);
}

TEST(ToyPredictorsTest, RelativeMetricsStartAtZeroAndKnowTheirSign) {
  RunResult run = MadeUp(0, 1000, -1);
  for (int row = 8; row < kRows; ++row) {
    At(run.trace[row], Watched::kGradientNorm) = 0.3;
    At(run.trace[row], Watched::kReward) = 0.1;
  }
  const auto spike = PredictorValues(Predictor::kGradientSpike, run.trace);
  const auto fall = PredictorValues(Predictor::kGradientFall, run.trace);
  const auto reward = PredictorValues(Predictor::kRewardFall, run.trace);
  EXPECT_EQ(spike[7], 0);
  EXPECT_NEAR(spike[11], std::log(3), 1e-12);
  EXPECT_NEAR(fall[11], -std::log(3), 1e-12);
  EXPECT_NEAR(reward[8], 0.2, 1e-12);  // one of the two smoothed rows has fallen by .4
  EXPECT_NEAR(reward[11], 0.4, 1e-12);
}

TEST(ToyPredictorsTest, ABatchWithoutASignCountsAsNothing) {
  RunResult run = MadeUp(0, 1000, -1);
  for (TraceRow& row : run.trace) {
    At(row, Watched::kKeptPositive) = kNan;
    At(row, Watched::kKeptNegative) = 1;
  }
  EXPECT_EQ(PredictorValues(Predictor::kSignImbalance, run.trace)[6], 0);
  At(run.trace[6], Watched::kKeptPositive) = 0.25;
  EXPECT_EQ(PredictorValues(Predictor::kSignImbalance, run.trace)[6], 0.75);
}

class ToySummaryTest : public ::testing::Test {
 protected:
  ToySummaryTest() : store_(RunStore::Open(dir_ / "runs.jsonl").value()) {}

  void Add(const Cell& cell, uint64_t seed, double score, int halved_at) {
    RunResult run = MadeUp(0, 1000, halved_at);
    run.score = run.mean_score = score;
    for (TraceRow& row : run.trace) At(row, Watched::kKl) = 0.25;
    ASSERT_TRUE(store_->Add({cell, Method::kNone, seed}, run).ok());
  }

  TempDir dir_;
  const std::unique_ptr<RunStore> store_;
  const std::vector<Cell> cells_ = PhaseCells(100);
  const std::vector<Method> methods_ = {Method::kNone};
};

TEST_F(ToySummaryTest, TheTableHasMeanWorstSeedAndCollapses) {
  Add(cells_[1], 1, 0.9, -1);
  Add(cells_[1], 2, 0.5, 70);
  const auto table = MakePhaseTable(cells_, methods_, 2, *store_);
  ASSERT_EQ(table.size(), 1u);
  EXPECT_NEAR(table[0].score.mean, 0.7, 1e-12);
  EXPECT_NEAR(table[0].score.high - 0.7, 12.706 * 0.2, 1e-3);  // s / sqrt(2) = .2
  EXPECT_EQ(table[0].worst, 0.5);
  EXPECT_EQ(table[0].num_halved, 1);
}

TEST_F(ToySummaryTest, ALossIsPairedBySeed) {
  const std::vector<Cell> kinds = {KindCells(100).front()};
  Add(cells_[0], 1, 0.9, -1);
  Add(cells_[0], 2, 0.5, -1);
  Add(kinds[0], 1, 0.8, -1);
  Add(kinds[0], 2, 0.4, -1);
  Add(kinds[0], 3, 0.1, -1);  // its partner is missing
  const auto effects = MakeKindEffects(kinds, cells_[0], methods_, 3, *store_);
  ASSERT_EQ(effects.size(), 1u);
  EXPECT_EQ(effects[0].num_seeds, 2);
  EXPECT_NEAR(effects[0].loss.mean, 0.1, 1e-12);
  EXPECT_NEAR(effects[0].loss.high, 0.1, 1e-9);  // the same in both seeds
  EXPECT_EQ(effects[0].mean_kl, 0.25);
}

TEST_F(ToySummaryTest, TheReportSaysWhatTheTableHolds) {
  Add(cells_[1], 1, 0.96, -1);
  Add(cells_[1], 2, 0.94, 70);
  PhaseReport report{.date = "2026-11-22", .commit = "abc", .num_seeds = 2, .steps = 100};
  report.table = MakePhaseTable(cells_, methods_, 2, *store_);
  const std::string page = ToMarkdown(report);
  EXPECT_NE(page.find("2026-11-22, commit abc, seeds 1 to 2, 100 steps."), std::string::npos);
  EXPECT_NE(page.find("| lag 4 | 0.95 ± 0.13 (0.94) |"), std::string::npos) << page;
  EXPECT_NE(page.find("| lag 4 | 1/2 |"), std::string::npos);
  EXPECT_EQ(page.find("Kinds of gap"), std::string::npos);
  EXPECT_NE(ToJson(report).find("\"cell\": \"lag_4\""), std::string::npos);
}

}  // namespace
}  // namespace tandem::drift
