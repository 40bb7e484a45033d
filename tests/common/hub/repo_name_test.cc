#include "common/hub/repo_name.h"

#include <gtest/gtest.h>

#include <string>

#include "common/hub/file_choice.h"
#include "tests/support/status_matchers.h"

namespace tandem::hub {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(RepoNameTest, ReadsNameAndRevision) {
  const auto plain = ParseRepoName("Qwen/Qwen2.5-0.5B-Instruct", RepoType::kModel);
  ASSERT_THAT(plain, IsOk());
  EXPECT_EQ(plain->id, "Qwen/Qwen2.5-0.5B-Instruct");
  EXPECT_EQ(plain->revision, "main");
  EXPECT_EQ(plain->FolderName(), "models--Qwen--Qwen2.5-0.5B-Instruct");
  const auto pinned = ParseRepoName("gpt2@refs/pr/1", RepoType::kDataset);
  ASSERT_THAT(pinned, IsOk());
  EXPECT_EQ(pinned->revision, "refs/pr/1");
  EXPECT_EQ(pinned->FolderName(), "datasets--gpt2");
  EXPECT_EQ(pinned->Text(), "gpt2@refs/pr/1");
}

// The examples of huggingface_hub's validate_repo_id.
TEST(RepoNameTest, HasTheRulesOfHuggingfaceHub) {
  for (const char* name : {"foo", "foo/bar", "123", "Foo-BAR_foo.bar123", "_a/b_"}) {
    EXPECT_THAT(ParseRepoName(name, RepoType::kModel), IsOk()) << name;
  }
  for (const char* name : {"datasets/foo/bar", ".repo_id", "foo--bar", "foo.git", "other..repo..id",
                           "a b", "a/", "/a", "", "-a", "a/b-", "a/b\n"}) {
    EXPECT_THAT(ParseRepoName(name, RepoType::kModel), FailsWith(kInvalid, "is no name")) << name;
  }
  EXPECT_THAT(ParseRepoName(std::string(97, 'a'), RepoType::kModel),
              FailsWith(kInvalid, "1 to 96"));
}

TEST(RepoNameTest, RefusesRevisionsThatLeadOutOfTheCache) {
  for (const char* name : {"a/b@", "a/b@../../x", "a/b@/etc", "a/b@x\\y", "a/b@x/", "a/b@x y"}) {
    EXPECT_THAT(ParseRepoName(name, RepoType::kModel), FailsWith(kInvalid, "is no revision"))
        << name;
  }
}

TEST(RepoNameTest, KnowsACommit) {
  EXPECT_TRUE(IsCommit("7ae557604adf67be50417f59c2c2f167def9a775"));
  EXPECT_FALSE(IsCommit("7ae557604adf67be50417f59c2c2f167def9a77"));
  EXPECT_FALSE(IsCommit("7AE557604adf67be50417f59c2c2f167def9a775"));
}

TEST(FileChoiceTest, ChoosesWhatTandemReadsOfAModel) {
  const FileChoice choice;
  for (const char* path : {"config.json", "tokenizer.json", "model.safetensors", "merges.txt",
                           "model-00001-of-00002.safetensors", "model.safetensors.index.json",
                           "additional_chat_templates/tool.jinja"}) {
    EXPECT_TRUE(IsChosen(choice, RepoType::kModel, path)) << path;
  }
  for (const char* path : {"README.md", "pytorch_model.bin", "original/model.safetensors",
                           "consolidated.safetensors", "onnx/config.json", "training_args.bin"}) {
    EXPECT_FALSE(IsChosen(choice, RepoType::kModel, path)) << path;
  }
}

TEST(FileChoiceTest, ChoosesTheRowsOfADataSetInEveryFolder) {
  const FileChoice choice;
  EXPECT_TRUE(IsChosen(choice, RepoType::kDataset, "main/train-00000-of-00001.parquet"));
  EXPECT_TRUE(IsChosen(choice, RepoType::kDataset, "data/a/b.jsonl"));
  EXPECT_TRUE(IsChosen(choice, RepoType::kDataset, "README.md"));
  EXPECT_FALSE(IsChosen(choice, RepoType::kDataset, "gsm8k.py"));
}

TEST(FileChoiceTest, IncludeReplacesTheChoiceAndExcludeTakesAway) {
  const FileChoice choice = {.include = {"*.md", "onnx/"}, .exclude = {"onnx/big*"}};
  EXPECT_TRUE(IsChosen(choice, RepoType::kModel, "docs/a.md"));
  EXPECT_TRUE(IsChosen(choice, RepoType::kModel, "onnx/x/model.onnx"));
  EXPECT_FALSE(IsChosen(choice, RepoType::kModel, "onnx/big.onnx"));
  EXPECT_FALSE(IsChosen(choice, RepoType::kModel, "config.json"));
  EXPECT_FALSE(IsChosen({.include = {"*"}}, RepoType::kModel, "pytorch_model.bin"));
}

// As Python's fnmatchcase: * matches a slash, brackets are sets, and a backslash is a slash.
TEST(FileChoiceTest, MatchesGlobsAsFnmatch) {
  EXPECT_TRUE(MatchesGlob("data/*.json", "data/sub/file.json"));
  EXPECT_TRUE(MatchesGlob("model-0000[12]-*", "model-00002-of-9.safetensors"));
  EXPECT_FALSE(MatchesGlob("model-0000[!12]-*", "model-00002-of-9.safetensors"));
  EXPECT_TRUE(MatchesGlob("data\\*", "data/x"));
  EXPECT_TRUE(MatchesGlob("*", ".hidden/x"));
  EXPECT_FALSE(MatchesGlob("*.JSON", "a.json"));
}

}  // namespace
}  // namespace tandem::hub
