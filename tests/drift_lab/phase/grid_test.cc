#include "drift_lab/phase/grid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "common/files/file_system.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem::drift {
namespace {

using ::tandem::testing::TempDir;

constexpr int kSteps = 10;

std::vector<PlannedRun> SmallPlan() {
  std::vector<Cell> cells = PhaseCells(kSteps);
  cells.resize(2);  // no gap, lag 4
  const Method methods[] = {Method::kNone, Method::kTokenTis};
  return Plan(cells, methods, 2);
}

// A run of made-up numbers with more digits than the file keeps. The first of the plan takes
// longest, so that on two threads it is not the first to be done.
RunResult MakeUp(const PlannedRun& run) {
  const int work = run.seed == 1 ? 200000 : 1000;
  double sum = 0;
  for (int i = 1; i <= work; ++i) sum += 1.0 / i;
  RunResult result{.start = 1.0 / 3, .score = 1 / sum, .mean_score = 2.0 / 7, .highest = 0.9};
  result.halved_at = static_cast<int>(run.seed);
  for (int row = 0; row < 2; ++row) {
    result.trace.emplace_back().fill(std::sqrt(static_cast<double>(run.seed) + row));
  }
  return result;
}

absl::Status Fill(const std::string& path, int threads, const GridHooks& hooks = {}) {
  auto store = RunStore::Open(path);
  if (!store.ok()) return store.status();
  return RunGrid(SmallPlan(), threads, MakeUp, **store, hooks);
}

std::string Contents(const std::string& path) { return ReadFile(path).value_or("unreadable"); }

class ToyGridTest : public ::testing::Test {
 protected:
  // The file of an uninterrupted run on one thread, made once.
  static void SetUpTestSuite() {
    const TempDir dir;
    ASSERT_TRUE(Fill(dir / "runs.jsonl", 1).ok());
    whole_ = Contents(dir / "runs.jsonl");
  }

  static inline std::string whole_;
  TempDir dir_;
  const std::string path_ = dir_ / "runs.jsonl";
};

TEST_F(ToyGridTest, TwoThreadsWriteTheFileOfOne) {
  ASSERT_TRUE(Fill(path_, 2).ok());
  const std::string contents = Contents(path_);
  EXPECT_EQ(contents, whole_);
  EXPECT_EQ(std::count(contents.begin(), contents.end(), '\n'), 9);  // 1 + 8 runs
}

TEST_F(ToyGridTest, GoesOnWhereItWasStoppedAndEndsWithTheSameFile) {
  int asked = 0;
  const absl::Status stopped =
      Fill(path_, 1, {.on_progress = {}, .should_stop = [&asked] { return ++asked > 3; }});
  EXPECT_EQ(stopped.code(), absl::StatusCode::kCancelled);
  EXPECT_NE(stopped.message().find("after 3 of 8 runs"), std::string::npos) << stopped;
  int64_t missing = 0;
  ASSERT_TRUE(
      Fill(path_, 2,
           {.on_progress = [&](int64_t, int64_t total, const PlannedRun&) { missing = total; },
            .should_stop = {}})
          .ok());
  EXPECT_EQ(missing, 5);
  EXPECT_EQ(Contents(path_), whole_);
}

TEST_F(ToyGridTest, ALineThatWasCutShortIsMadeAgain) {
  ASSERT_TRUE(WriteFileAtomically(path_, whole_.substr(0, whole_.size() - 100)).ok());
  ASSERT_TRUE(Fill(path_, 1).ok());
  EXPECT_EQ(Contents(path_), whole_);
}

TEST_F(ToyGridTest, WhatIsReadBackIsWhatWasKept) {
  const std::vector<PlannedRun> plan = SmallPlan();
  const auto made = RunStore::Open(path_).value();
  ASSERT_TRUE(RunGrid(std::span(plan).first(2), 1, MakeUp, *made, {}).ok());
  const auto read = RunStore::Open(path_).value();
  for (const PlannedRun& planned : std::span(plan).first(2)) {
    const RunResult *a = made->Find(planned), *b = read->Find(planned);
    ASSERT_NE(a, nullptr);
    ASSERT_NE(b, nullptr);
    EXPECT_EQ(a->score, b->score);
    EXPECT_EQ(a->halved_at, b->halved_at);
    ASSERT_EQ(a->trace.size(), 2u);
    EXPECT_EQ(At(a->trace[1], Watched::kEntropy), At(b->trace[1], Watched::kEntropy));
  }
}

TEST_F(ToyGridTest, AnotherNumberOfStepsIsAnotherRun) {
  ASSERT_TRUE(WriteFileAtomically(path_, whole_).ok());
  const auto store = RunStore::Open(path_).value();
  PlannedRun planned = SmallPlan().front();
  EXPECT_NE(store->Find(planned), nullptr);
  planned.cell.steps = 20;
  EXPECT_EQ(store->Find(planned), nullptr);
}

TEST_F(ToyGridTest, RefusesAFileThatIsNotItsOwn) {
  ASSERT_TRUE(WriteFileAtomically(path_, "{\"reward\":1}\n").ok());
  EXPECT_EQ(RunStore::Open(path_).status().code(), absl::StatusCode::kInvalidArgument);
  std::string text = whole_;
  text.insert(text.find('\n') + 1, "{\"cell\":3}\n");
  ASSERT_TRUE(WriteFileAtomically(path_, text).ok());
  const absl::Status status = RunStore::Open(path_).status();
  EXPECT_NE(status.message().find("runs.jsonl:2: not a run"), std::string::npos) << status;
}

TEST(ToyCellsTest, AnotherWarmStartIsAnotherCell) {
  const Cell lag = PhaseCells(800)[1];
  EXPECT_EQ(WithContextNoise(lag, lag.context_noise).name, "lag_4");
  const Cell other = WithContextNoise(lag, 0.25);
  EXPECT_EQ(other.name, "lag_4_context_0.25");
  EXPECT_EQ(OptionsOf({other, Method::kNone, 1}).warm_start.context_noise, 0.25);
  EXPECT_EQ(OptionsOf({other, Method::kNone, 1}).warm_start.pass_probability, 0.30);
}

TEST(ToyCellsTest, HaveNamesOfTheirOwn) {
  std::vector<std::string> names;
  for (const Cell& cell : PhaseCells(800)) names.push_back(cell.name);
  for (const Cell& cell : KindCells(800)) names.push_back(cell.name);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
  EXPECT_EQ(PhaseCells(800).front().name, kNoGap);
  EXPECT_EQ(PhaseCells(800).back().length, 24);
  EXPECT_EQ(PhaseCells(800).back().steps, 400);
}

}  // namespace
}  // namespace tandem::drift
