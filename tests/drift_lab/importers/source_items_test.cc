#include "drift_lab/importers/source_items.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/files/file_system.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem::drift {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;
using ::testing::ElementsAre;

class SourceItems : public ::testing::Test {
 protected:
  // "PLACE VALUE" of each item of a file with these contents.
  std::vector<std::string> Items(const std::string& contents) {
    const std::string path = directory_ / "file.json";
    EXPECT_THAT(WriteFileAtomically(path, contents), IsOk());
    std::vector<std::string> items;
    EXPECT_THAT(ForEachItem(path, SourceKind::kJson,
                            [&](const nlohmann::json& item, const std::string& place) {
                              items.push_back(absl::StrCat(place, ": ", item.dump()));
                              return absl::OkStatus();
                            }),
                IsOk());
    return items;
  }

  TempDir directory_;
};

TEST_F(SourceItems, AreLines) {
  EXPECT_THAT(Items("{\"a\": 1}\n\n{\"a\": 2}\n"),
              ElementsAre("line 1: {\"a\":1}", "line 3: {\"a\":2}"));
}

TEST_F(SourceItems, AreElementsOfALine) {
  EXPECT_THAT(Items("[{\"a\": 1}, {\"a\": 2}]\n{\"a\": 3}"),
              ElementsAre("line 1 element 0: {\"a\":1}", "line 1 element 1: {\"a\":2}",
                          "line 2: {\"a\":3}"));
}

TEST_F(SourceItems, AreOneDocumentOverManyLines) {
  EXPECT_THAT(Items("{\n \"a\": 1\n}\n"), ElementsAre(": {\"a\":1}"));
  EXPECT_THAT(Items("[\n {\"a\": 1},\n {\"a\": 2}\n]\n"),
              ElementsAre("element 0: {\"a\":1}", "element 1: {\"a\":2}"));
}

TEST_F(SourceItems, HaveTextsForNumbersThatJsonHasNot) {
  EXPECT_THAT(Items("{\"a\": [NaN, -Infinity, \"NaN or not\"]}"),
              ElementsAre("line 1: {\"a\":[\"NaN\",\"-Infinity\",\"NaN or not\"]}"));
}

TEST_F(SourceItems, EndWithTheErrorOfTheTakerAndItsPlace) {
  const std::string path = directory_ / "file.json";
  ASSERT_THAT(WriteFileAtomically(path, "{}\n{}\n{}\n"), IsOk());
  int taken = 0;
  EXPECT_THAT(ForEachItem(path, SourceKind::kJson,
                          [&](const nlohmann::json&, const std::string&) {
                            return ++taken == 2 ? absl::InvalidArgumentError("field: wrong")
                                                : absl::OkStatus();
                          }),
              FailsWith(absl::StatusCode::kInvalidArgument, "file.json line 2: field: wrong"));
  EXPECT_EQ(taken, 2);
}

TEST_F(SourceItems, NestNoDeeperThanTheParserCanBear) {
  const std::string path = directory_ / "file.json";
  ASSERT_THAT(WriteFileAtomically(path, std::string(100000, '[')), IsOk());
  EXPECT_THAT(
      ForEachItem(path, SourceKind::kJson,
                  [](const nlohmann::json&, const std::string&) { return absl::OkStatus(); }),
      FailsWith(absl::StatusCode::kInvalidArgument, "nest deeper than 64"));
}

TEST_F(SourceItems, ComeFromFilesInNaturalOrderAndNotFromHiddenOnes) {
  for (const char* name : {"step_10/a.jsonl", "step_9/a.jsonl", ".cache/a.jsonl", "step_9/.b"}) {
    const std::filesystem::path path(directory_ / name);
    ASSERT_THAT(MakeDirectories(path.parent_path().string()), IsOk());
    ASSERT_THAT(WriteFileAtomically(path.string(), "{}\n"), IsOk());
  }
  const auto files = SourceFiles({directory_.path()});
  ASSERT_THAT(files, IsOk());
  ASSERT_EQ(files->size(), 2);
  EXPECT_EQ((*files)[0].path, directory_ / "step_9/a.jsonl");
  EXPECT_EQ((*files)[0].step, 9);
  EXPECT_FALSE((*files)[0].is_named);
  EXPECT_EQ((*files)[1].step, 10);
}

TEST(StepInName, IsThatOfTheFileOrOfItsDirectory) {
  EXPECT_EQ(StepInName("logs/exp_001/train_data_step12.jsonl"), 12);
  EXPECT_EQ(StepInName("token_exports/step_3/rank_1.jsonl"), 3);
  EXPECT_EQ(StepInName("dashboard_columns/rollout_4.parquet"), 4);
  EXPECT_EQ(StepInName("rollout_data/5.json"), 5);
  EXPECT_EQ(StepInName("global_step_6_training_input.pkl"), 6);
  EXPECT_EQ(StepInName("run1_rollouts_000000.jsonl"), std::nullopt);
  EXPECT_EQ(StepInName("answers.jsonl"), std::nullopt);
  EXPECT_EQ(StepInName("exp_001/misstep7.jsonl"), std::nullopt);
}

}  // namespace
}  // namespace tandem::drift
