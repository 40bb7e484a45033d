#include "common/tables/hub_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace tandem {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

// The examples of the docstring of get_data_patterns in the library `datasets`.

TEST(SplitsOfNames, ShardsInDataMayHaveAnySplit) {
  EXPECT_THAT(SplitsOfNames({"data/random-00000-of-00002.csv", "data/random-00001-of-00002.csv",
                             "data/train-00000-of-00001.csv", "other/test.csv"}),
              ElementsAre(Pair("random", ElementsAre("data/random-00000-of-00002.csv",
                                                     "data/random-00001-of-00002.csv")),
                          Pair("train", ElementsAre("data/train-00000-of-00001.csv"))));
}

TEST(SplitsOfNames, FoldersSaySplits) {
  EXPECT_THAT(
      SplitsOfNames({"data/test/shard_0.csv", "data/train/shard_0.csv", "data/train/shard_1.csv"}),
      ElementsAre(Pair("test", ElementsAre("data/test/shard_0.csv")),
                  Pair("train", ElementsAre("data/train/shard_0.csv", "data/train/shard_1.csv"))));
}

TEST(SplitsOfNames, NamesOfFilesSaySplits) {
  EXPECT_THAT(SplitsOfNames({"my-dev.jsonl", "test_0.csv", "test_1.csv", "train.csv"}),
              ElementsAre(Pair("validation", ElementsAre("my-dev.jsonl")),
                          Pair("test", ElementsAre("test_0.csv", "test_1.csv")),
                          Pair("train", ElementsAre("train.csv"))));
}

TEST(SplitsOfNames, AWordInsideOfAWordIsNone) {
  EXPECT_THAT(SplitsOfNames({"contest.csv", "devices.csv"}),
              ElementsAre(Pair("train", ElementsAre("contest.csv", "devices.csv"))));
  EXPECT_THAT(SplitsOfNames({}), IsEmpty());
}

constexpr char kGsm8k[] =
    "---\nlicense: mit\nconfigs:\n- config_name: main\n  data_files:\n  - split: train\n    path: "
    "main/train-*\n  - split: test\n    path: main/test-*\n- config_name: socratic\n  data_files:\n"
    "  - split: train\n    path: [socratic/*.parquet]\n---\n# GSM8K\n";

TEST(StatedSubsets, AreThoseOfTheFrontMatter) {
  const auto subsets = StatedSubsets(
      kGsm8k, {"main/test-00000-of-00001.parquet", "main/train-00000-of-00001.parquet",
               "socratic/train-00000-of-00001.parquet"});
  ASSERT_THAT(subsets, IsOk());
  ASSERT_EQ(subsets->size(), 2u);
  EXPECT_EQ((*subsets)[0].name, "main");
  EXPECT_THAT((*subsets)[0].splits,
              ElementsAre(Pair("train", ElementsAre("main/train-00000-of-00001.parquet")),
                          Pair("test", ElementsAre("main/test-00000-of-00001.parquet"))));
  EXPECT_THAT((*subsets)[1].splits,
              ElementsAre(Pair("train", ElementsAre("socratic/train-00000-of-00001.parquet"))));
}

TEST(StatedSubsets, APatternStaysInItsFolderUnlessItHasTwoStars) {
  const auto of = [](const std::string& pattern) {
    const auto subsets =
        StatedSubsets("---\nconfigs:\n- config_name: d\n  default: true\n  data_files: \"" +
                          pattern + "\"\n---\n",
                      {"a.csv", "x/b.csv"});
    EXPECT_THAT(subsets, IsOk());
    EXPECT_TRUE((*subsets)[0].is_default);
    return (*subsets)[0].splits;
  };
  EXPECT_THAT(of("*.csv"), ElementsAre(Pair("train", ElementsAre("a.csv"))));
  EXPECT_THAT(of("**/*.csv"), ElementsAre(Pair("train", ElementsAre("a.csv", "x/b.csv"))));
}

TEST(StatedSubsets, ADataFolderIsReadByNames) {
  const auto subsets = StatedSubsets("---\nconfigs:\n- config_name: d\n  data_dir: x\n---\n",
                                     {"a.csv", "x/test.csv"});
  ASSERT_THAT(subsets, IsOk());
  EXPECT_THAT((*subsets)[0].splits, ElementsAre(Pair("test", ElementsAre("x/test.csv"))));
}

TEST(StatedSubsets, WithoutFrontMatterThereAreNone) {
  EXPECT_THAT(*StatedSubsets("# A page\n", {"a.csv"}), IsEmpty());
  EXPECT_THAT(*StatedSubsets("---\nlicense: mit\n---\n", {"a.csv"}), IsEmpty());
}

TEST(StatedSubsets, OtherFormsAreErrors) {
  const auto fails = [](const char* matter) { return StatedSubsets(matter, {"a.csv"}).status(); };
  EXPECT_THAT(fails("---\nconfigs: [\n---\n"),
              FailsWith(absl::StatusCode::kInvalidArgument, "not YAML"));
  EXPECT_THAT(fails("---\nconfigs: 3\n---\n"),
              FailsWith(absl::StatusCode::kInvalidArgument, "is no list"));
  EXPECT_THAT(fails("---\nconfigs:\n- data_files: a\n---\n"),
              FailsWith(absl::StatusCode::kInvalidArgument, "config_name"));
  EXPECT_THAT(fails("---\nconfigs:\n- config_name: a\n  data_files: {x: y}\n---\n"),
              FailsWith(absl::StatusCode::kInvalidArgument, "want a pattern"));
}

}  // namespace
}  // namespace tandem
