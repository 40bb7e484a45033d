#include "cli/pipeline/pipeline_file.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/files/file_system.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem::cli {
namespace {

using testing::FailsWith;
using testing::TempDir;

class PipelineFileTest : public ::testing::Test {
 protected:
  absl::StatusOr<PipelineFile> Read(const std::string& yaml,
                                    const std::vector<std::string>& sets = {}) {
    path_ = dir_.path() + "/p.yaml";
    EXPECT_TRUE(WriteFileAtomically(path_, yaml).ok());
    return ReadPipelineFile(path_, sets);
  }
  std::string At(int line) const { return path_ + ":" + std::to_string(line) + ": "; }

  const TempDir dir_;
  std::string path_;
};

constexpr char kTwo[] =
    "pipeline: {name: two, out: runs, seed: 7}\n"
    "stages:\n"
    "  - name: warm\n"
    "    kind: sft\n"
    "    options:\n"
    "      model: base\n"
    "      data: a.jsonl\n"
    "      shard_parameters: true\n"
    "  - name: ppo\n"
    "    kind: rl\n"
    "    options:\n"
    "      trainer:\n"
    "        model: ${stages.warm.model}\n"
    "        # a remark\n"
    "        steps: 3\n";

TEST_F(PipelineFileTest, StagesFollowEachOtherAndReferencesAreThePathsOfOutputs) {
  const auto file = Read(kTwo);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->directory(), "runs/two");
  EXPECT_EQ(file->seed, 7);
  ASSERT_EQ(file->stages.size(), 2u);
  EXPECT_EQ(file->stages[0].kind, StageKind::kSft);
  EXPECT_EQ(file->stages[0].options[2].name, "shard-parameters");
  EXPECT_EQ(file->OutputPath(0, "model"), "runs/two/stages/1_warm/model");
  EXPECT_EQ(file->stages[1].reads, std::vector<std::string>{"runs/two/stages/1_warm/model"});
  // The lines of the run file stay where they are, so that its messages name them.
  ASSERT_EQ(file->stages[1].texts.size(), 1u);
  EXPECT_EQ(
      file->stages[1].texts[0].yaml,
      std::string(11, '\n') + "trainer:\n  model: runs/two/stages/1_warm/model\n\n  steps: 3\n\n");
}

TEST_F(PipelineFileTest, AFileWithoutStagesIsNoPipeline) {
  EXPECT_TRUE(Read(kTwo).ok());
  EXPECT_TRUE(IsPipelineFile(path_));
  ASSERT_TRUE(WriteFileAtomically(path_, "trainer: {steps: 3}\n").ok());
  EXPECT_FALSE(IsPipelineFile(path_));
  EXPECT_FALSE(IsPipelineFile(dir_.path() + "/missing.yaml"));
}

TEST_F(PipelineFileTest, ASettingNamesItsStage) {
  const auto file = Read(kTwo, {"warm.model=other", "warm.max_updates=3", "ppo.trainer.steps=1"});
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->stages[0].options[0].values, std::vector<std::string>{"other"});
  EXPECT_EQ(file->stages[0].options[3].name, "max-updates");
  EXPECT_EQ(file->stages[1].sets, std::vector<std::string>{"trainer.steps=1"});
  EXPECT_THAT(Read(kTwo, {"cold.model=x"}),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        "there is no stage 'cold'; there are warm, ppo"));
  EXPECT_THAT(Read(kTwo, {"model=x"}),
              FailsWith(absl::StatusCode::kInvalidArgument, "expected STAGE.KEY=VALUE"));
}

TEST_F(PipelineFileTest, ListsAndMappingsAreRepeatedFlags) {
  const auto file = Read(
      "pipeline: {name: p}\n"
      "stages:\n"
      "  - {name: s, kind: samples, options: {reward: {number_answer: 1, format: 0.5}, stop: [a, "
      "b]}}\n");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->stages[0].options[0].values,
            (std::vector<std::string>{"number_answer=1", "format=0.5"}));
  EXPECT_EQ(file->stages[0].options[1].values, (std::vector<std::string>{"a", "b"}));
}

TEST_F(PipelineFileTest, AFileOfOptionsComesBeforeTheStagesOwn) {
  const std::string options = dir_.path() + "/options.yaml";
  ASSERT_TRUE(WriteFileAtomically(options, "lr: 1e-3\nepochs: 2\n").ok());
  const auto file = Read("pipeline: {name: p}\nstages:\n  - {name: s, kind: sft, file: " + options +
                         ", options: {epochs: 5}}\n");
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(file->stages[0].options.size(), 2u);
  EXPECT_EQ(file->stages[0].options[0].values[0], "1e-3");
  EXPECT_EQ(file->stages[0].options[1].values[0], "5");
  EXPECT_THAT(Read("pipeline: {name: p}\nstages:\n  - {name: s, kind: sft, file: none.yaml}\n"),
              FailsWith(absl::StatusCode::kNotFound, "none.yaml"));
}

struct Mistake {
  std::string stages;  // after "pipeline: {name: p}\nstages:\n"
  int line;
  std::string message;
};

TEST_F(PipelineFileTest, AMistakeIsNamedWithItsLine) {
  const Mistake kMistakes[] = {
      {"  - {name: a, kind: sfd}\n", 3, "kind 'sfd': expected one of sft, reward_model"},
      {"  - {name: a, kind: sft}\n  - {name: a, kind: sft}\n", 4, "two stages have the name a"},
      {"  - {name: a b, kind: sft}\n", 3, "expected letters, digits, - and _"},
      {"  - {name: a, knd: sft}\n", 3, "unknown key 'knd' of a stage"},
      {"  - {name: a, kind: sft, options: 3}\n", 3, "options: expected 'name: value' lines"},
      {"  - name: a\n    kind: sft\n    options: {lr: 1, lr: 2}\n", 5, "'lr' is given twice"},
      {"  - name: a\n    kind: sft\n    options:\n      model: ${stages.b.model}\n"
       "  - {name: b, kind: sft}\n",
       6, "that stage runs later; earlier ones are none"},
      {"  - name: a\n    kind: sft\n    options:\n      model: ${stages.a.model}\n", 6,
       "this is the stage itself"},
      {"  - name: a\n    kind: sft\n    options:\n      model: ${stages.z.model}\n", 6,
       "there is no such stage"},
      {"  - {name: a, kind: sft}\n  - name: b\n    kind: rl\n    options:\n      trainer:\n"
       "        model: ${stages.a.data}\n",
       8, "a stage of kind sft has no output 'data'; it has model"},
      {"  - name: a\n    kind: sft\n    options:\n      model: ${a.model}\n", 6,
       "expected ${stages.NAME.OUTPUT}"},
  };
  for (const Mistake& mistake : kMistakes) {
    const auto file = Read("pipeline: {name: p}\nstages:\n" + mistake.stages);
    EXPECT_THAT(file, FailsWith(absl::StatusCode::kInvalidArgument, mistake.message))
        << mistake.stages;
    EXPECT_EQ(std::string(file.status().message()).find(At(mistake.line)), 0u) << file.status();
  }
  EXPECT_THAT(Read("pipeline: {name: p}\nstages: []\n"),
              FailsWith(absl::StatusCode::kInvalidArgument, "stages: expected a list of stages"));
  EXPECT_THAT(Read("stages:\n  - {name: a, kind: sft}\n"),
              FailsWith(absl::StatusCode::kInvalidArgument, "no `pipeline:` with a name"));
  EXPECT_THAT(Read("pipeline: {name: p, seed: -1}\nstages: []\n"),
              FailsWith(absl::StatusCode::kInvalidArgument, "expected an integer from 0 on"));
}

}  // namespace
}  // namespace tandem::cli
