#include "drift_lab/why/run_ratios.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem::drift {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::TempDir;
using ::testing::HasSubstr;

void Put(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text;
}

TEST(RunRatiosTest, ReadsTheStepsOfARunAndLeavesOutEvaluationsAndALineThatIsBeingWritten) {
  const TempDir dir;
  Put(dir.path() + "/metrics.jsonl",
      "{\"step\":0,\"eval/greedy\":0.5}\n"
      "{\"step\":1,\"loss/num_updates\":1,\"loss/ratio_mean\":1,\"loss/ratio_max\":1}\n"
      "{\"step\":2,\"loss/num_updates\":4,\"loss/ratio_mean\":0.98,\"loss/ratio_max\":1.5,\"loss/"
      "clip_low_share\":0.25,"
      "\"loss/clip_high_share\":0.125,\"optimizer/grad_norm\":2,\"optimizer/skipped_updates\":1}\n"
      "{\"step\":3,\"loss/num_updates\":2,\"loss/ratio_mean\":null,\"loss/ratio_max\":1}\n"
      "{\"step\":4,\"loss/num_up");
  Put(dir.path() + "/config.yaml", "trainer:\n  correction:\n    mode: bypass\n");
  const RunRatios ratios = ReadRunRatios(dir.path()).value();
  EXPECT_TRUE(ratios.bypass);
  ASSERT_EQ(ratios.steps.size(), 3u);
  const StepRatio& second = *ratios.Find(2);
  EXPECT_EQ(second.num_updates, 4);
  EXPECT_EQ(second.skipped_updates, 1);
  EXPECT_EQ(second.mean, 0.98);
  EXPECT_EQ(second.max, 1.5);
  EXPECT_EQ(second.clipped_share, 0.375);
  EXPECT_TRUE(std::isnan(ratios.Find(3)->mean));
  EXPECT_EQ(ratios.Find(4), nullptr);
}

TEST(RunRatiosTest, AModeIsReadFromTheTrainersOwnConfigurationTooAndAbsentMeansDecoupled) {
  const TempDir dir;
  Put(dir.path() + "/config.yaml", "correction: {mode: bypass}\n");
  EXPECT_TRUE(ReadRunRatios(dir.path())->bypass);
  Put(dir.path() + "/config.yaml", "trainer: {seed: 1}\n");
  EXPECT_FALSE(ReadRunRatios(dir.path())->bypass);
  Put(dir.path() + "/config.yaml", "trainer: [1\n");
  EXPECT_THAT(ReadRunRatios(dir.path()),
              FailsWith(absl::StatusCode::kInvalidArgument, "config.yaml"));
  EXPECT_TRUE(ReadRunRatios("")->steps.empty());
}

TEST(FindCaptureTest, TakesTheNewestWholeCaptureOfARunAndTheRunOfACapture) {
  const TempDir dir;
  Put(dir.path() + "/metrics.jsonl", "");
  EXPECT_THAT(FindCapture(dir.path()),
              FailsWith(absl::StatusCode::kNotFound, "trainer.capture.every=1"));
  for (const char* step : {"step_2", "step_10", "step_9"}) {
    Put(dir.path() + "/captures/" + step + "/manifest.json", "{}");
  }
  std::filesystem::create_directories(dir.path() + "/captures/step_11");  // writing it did not end
  const WhyTarget of_run = FindCapture(dir.path() + "/").value();
  EXPECT_EQ(of_run.capture, dir.path() + "/captures/step_10");
  EXPECT_EQ(of_run.run, dir.path());
  const WhyTarget of_capture = FindCapture(dir.path() + "/captures/step_2/").value();
  EXPECT_EQ(of_capture.capture, dir.path() + "/captures/step_2");
  EXPECT_EQ(of_capture.run, dir.path());
}

TEST(FindCaptureTest, ACaptureWithoutARunIsFineAndAnythingElseIsRefused) {
  const TempDir dir;
  Put(dir.path() + "/mine/manifest.json", "{}");
  EXPECT_EQ(FindCapture(dir.path() + "/mine")->run, "");
  EXPECT_THAT(FindCapture(dir.path() + "/nowhere"),
              FailsWith(absl::StatusCode::kNotFound, "neither a run directory"));
}

}  // namespace
}  // namespace tandem::drift
