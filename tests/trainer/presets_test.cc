#include "trainer/presets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/files/file_system.h"
#include "tests/support/status_matchers.h"
#include "trainer/trainer_options.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::testing::HasSubstr;

absl::Status Load(const std::string& yaml, TrainerOptions* options, const std::string& set = "") {
  OptionBinder binder;
  binder.Section("trainer", "trainer", *options);
  return LoadOverPreset(
      binder, options->preset, [&] { return binder.LoadString(yaml, "file"); },
      [&] { return set.empty() ? absl::OkStatus() : binder.Set(set); });
}

TEST(Presets, AllStandForOptionsThatMakeARunTogether) {
  for (const Preset& preset : Presets()) {
    TrainerOptions options;
    ASSERT_THAT(
        Load("trainer: {preset: " + std::string(preset.name) + ", model: m, data: {train: d}}",
             &options),
        IsOk())
        << preset.name;
    EXPECT_THAT(CheckOptions(options), IsOk()) << preset.name;
    EXPECT_THAT(Explain(preset), HasSubstr("arXiv")) << preset.name;
  }
}

TEST(Presets, EachHasARowInTheDocumentation) {
  const std::string page = ReadFile(TANDEM_SOURCE_DIR "/docs/algorithms.md").value();
  for (const Preset& preset : Presets()) {
    const std::string row =
        "| `" + std::string(preset.name) + "` | " + std::string(preset.source) + " | ";
    EXPECT_THAT(page, HasSubstr(row));
  }
}

TEST(Presets, DapoIsClipHigherOverGroupsWithASignal) {
  TrainerOptions options;
  ASSERT_THAT(Load("trainer: {preset: dapo}", &options), IsOk());
  EXPECT_EQ(options.learner.step.loss.objective.clip_high, 0.28);
  EXPECT_TRUE(options.advantage.drop_zero_variance);
  EXPECT_EQ(options.preset, "dapo");
}

TEST(Presets, TheFileHasTheLastWord) {
  TrainerOptions options;
  ASSERT_THAT(Load("trainer: {preset: dapo, loss: {clip_high: 0.3}}", &options), IsOk());
  EXPECT_EQ(options.learner.step.loss.objective.clip_high, 0.3);
  EXPECT_TRUE(options.advantage.drop_zero_variance);
}

TEST(Presets, OneOfTheCommandLineStandsOverTheFile) {
  TrainerOptions options;
  ASSERT_THAT(Load("trainer: {preset: grpo, loss: {clip_high: 0.3}, advantage: {kind: mean_only}}",
                   &options, "trainer.preset=dapo"),
              IsOk());
  EXPECT_EQ(options.learner.step.loss.objective.clip_high, 0.28);
  EXPECT_EQ(options.advantage.kind, AdvantageKind::kGroupNorm);
  EXPECT_EQ(options.learner.step.loss.kl_coefficient, 0);
}

TEST(Presets, AnUnknownOneIsRefusedWithTheNamesThereAre) {
  TrainerOptions options;
  EXPECT_THAT(Load("trainer: {preset: dapoo}", &options),
              FailsWith(absl::StatusCode::kInvalidArgument, "no preset 'dapoo'; there are grpo,"));
}

}  // namespace
}  // namespace tandem::trainer
