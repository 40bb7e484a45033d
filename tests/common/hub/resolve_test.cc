#include "common/hub/resolve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "common/files/file_system.h"
#include "common/hub/hub_cache.h"
#include "common/hub/model_options.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem::hub {
namespace {

namespace fs = std::filesystem;
using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kNotFound = absl::StatusCode::kNotFound;
constexpr char kOld[] = "1111111111111111111111111111111111111111";
constexpr char kNew[] = "2222222222222222222222222222222222222222";

// A cache as huggingface_hub leaves it, written by hand.
class ResolveTest : public ::testing::Test {
 protected:
  ResolveTest() { settings_.cache = dir_ / "hub"; }

  std::string Repo(const std::string& folder = "models--org--tiny") const {
    return settings_.cache + "/" + folder;
  }

  static void Put(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(path).parent_path());
    ASSERT_THAT(WriteFileAtomically(path, text), IsOk());
  }

  // A file of a snapshot: a link to a blob, whose name stands for its contents here.
  void AddFile(const std::string& commit, const std::string& path, const std::string& blob,
               const std::string& folder = "models--org--tiny") {
    Put(Repo(folder) + "/blobs/" + blob, blob);
    const std::string link = Repo(folder) + "/snapshots/" + commit + "/" + path;
    fs::create_directories(fs::path(link).parent_path());
    fs::create_symlink(
        fs::path(Repo(folder) + "/blobs/" + blob).lexically_relative(fs::path(link).parent_path()),
        link);
  }

  void AddModel(const std::string& commit, const std::string& ref) {
    AddFile(commit, "config.json", "aaaa" + commit);
    Put(Repo() + "/refs/" + ref, commit);
  }

  const TempDir dir_;
  HubSettings settings_;
};

TEST_F(ResolveTest, APathThatExistsWinsOverAName) {
  AddModel(kOld, "main");
  const fs::path before = fs::current_path();
  fs::create_directories(dir_ / "work/org/tiny");
  fs::current_path(dir_ / "work");
  const auto found = ResolveModel("org/tiny", settings_);
  fs::current_path(before);
  ASSERT_THAT(found, IsOk());
  EXPECT_EQ(found->path, "org/tiny");
  EXPECT_EQ(found->name, "");
  EXPECT_EQ(found->Pinned(), "org/tiny");
}

TEST_F(ResolveTest, FindsBranchesTagsAndCommits) {
  AddModel(kOld, "refs/pr/1");
  AddModel(kNew, "main");
  const auto main = ResolveModel("org/tiny", settings_);
  ASSERT_THAT(main, IsOk());
  EXPECT_EQ(main->path, Repo() + "/snapshots/" + kNew);
  EXPECT_EQ(main->Pinned(), std::string("org/tiny@") + kNew);
  EXPECT_EQ(ResolveModel("org/tiny@refs/pr/1", settings_)->commit, kOld);
  EXPECT_EQ(ResolveModel(std::string("org/tiny@") + kOld, settings_)->commit, kOld);
  EXPECT_EQ(ResolveModel("org/tiny@11111", settings_)->commit, kOld);
  EXPECT_THAT(ResolveModel("org/tiny@1111", settings_), FailsWith(kNotFound, "no revision 1111"));
}

TEST_F(ResolveTest, ARefMayEndWithALineBreak) {
  AddModel(kOld, "main");
  Put(Repo() + "/refs/main", std::string(kOld) + "\n");
  EXPECT_THAT(ResolveModel("org/tiny", settings_), IsOk());
  Put(Repo() + "/refs/main", "");
  EXPECT_THAT(ResolveModel("org/tiny", settings_),
              FailsWith(absl::StatusCode::kDataLoss, "refs/main holds ''"));
}

TEST_F(ResolveTest, SaysWhereItLookedAndHowToFetch) {
  AddModel(kOld, "v1");
  EXPECT_THAT(ResolveModel("org/tinny", settings_),
              FailsWith(kNotFound,
                        "model org/tinny: no such directory, and it is not in the Hugging "
                        "Face cache: no " +
                            Repo("models--org--tinny") +
                            "; near it the cache has org/tiny; fetch it: tandem fetch "
                            "org/tinny (or hf download org/tinny)"));
  EXPECT_THAT(ResolveModel("other/tiny", settings_),
              FailsWith(kNotFound, "the cache has org/tiny"));
  EXPECT_THAT(ResolveModel("org/tiny", settings_),
              FailsWith(kNotFound, "no revision main of it: no " + Repo() +
                                       "/refs/main; it has commit " + kOld));
  EXPECT_THAT(
      ResolveModel("org/tiny@v2", settings_),
      FailsWith(kNotFound, "tandem fetch org/tiny@v2 (or hf download org/tiny --revision v2)"));
}

TEST_F(ResolveTest, DoesNotTakeAMissingPathForAName) {
  for (const char* path : {"/no/such", "./tiny", "../tiny", "~/tiny", "a/b/c", "no-such/"}) {
    const auto found = ResolveModel(path, settings_);
    EXPECT_THAT(found, FailsWith(kNotFound, "no such directory")) << path;
    EXPECT_EQ(found.status().message().find("tandem fetch"), std::string::npos) << path;
  }
}

TEST_F(ResolveTest, NamesShardsAndBlobsThatAreMissing) {
  AddModel(kOld, "main");
  Put(Repo() + "/snapshots/" + kOld + "/model.safetensors.index.json",
      R"({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})");
  AddFile(kOld, "model-1.safetensors", "bbbb");
  EXPECT_THAT(ResolveModel("org/tiny", settings_),
              FailsWith(kNotFound, "is not complete: model-2.safetensors is missing"));
  AddFile(kOld, "model-2.safetensors", "cccc");
  EXPECT_THAT(ResolveModel("org/tiny", settings_), IsOk());
  fs::rename(Repo() + "/blobs/cccc", Repo() + "/blobs/cccc.incomplete");
  EXPECT_THAT(ResolveModel("org/tiny", settings_),
              FailsWith(kNotFound,
                        "model-2.safetensors is missing (unfinished in blobs/: "
                        "cccc.incomplete); finish it: tandem fetch org/tiny"));
}

// huggingface_hub keeps files of Xet once for all repositories: blobs are links then.
TEST_F(ResolveTest, FollowsBlobsIntoTheStoreThatRepositoriesShare) {
  AddModel(kOld, "main");
  Put(settings_.cache + "/blobs/ab/abcd", "weights");
  fs::create_symlink("../../blobs/ab/abcd", Repo() + "/blobs/dddd");
  fs::create_symlink("../../blobs/dddd", Repo() + "/snapshots/" + kOld + "/model.safetensors");
  ASSERT_THAT(ResolveModel("org/tiny", settings_), IsOk());
  EXPECT_EQ(*ReadFile(ResolveModel("org/tiny", settings_)->path + "/model.safetensors"), "weights");
}

TEST_F(ResolveTest, DataSetsAreApartAndSayWhatWasNotFetched) {
  AddFile(kOld, "data/train.parquet", "eeee", "datasets--org--rows");
  Put(Repo("datasets--org--rows") + "/refs/main", kOld);
  Put(Repo("datasets--org--rows") + "/trees/" + kOld + ".json",
      R"({"format_version": 1, "files": {"data/train.parquet": {"size": 4, "blob_id": "x"},
          "data/test.parquet": {"size": 4, "blob_id": "y"}}})");
  const auto found = ResolveDataset("org/rows", settings_);
  ASSERT_THAT(found, IsOk());
  EXPECT_THAT(found->not_fetched, ElementsAre("data/test.parquet"));
  EXPECT_THAT(ResolveModel("org/rows", settings_), FailsWith(kNotFound, "models--org--rows"));
  EXPECT_THAT(ResolveDataset("org/none", settings_),
              FailsWith(kNotFound,
                        "tandem fetch --dataset org/none (or hf download --repo-type "
                        "dataset org/none)"));
  Put(dir_ / "rows.jsonl", "{}");
  EXPECT_EQ(ResolveDataset(dir_ / "rows.jsonl", settings_)->path, dir_ / "rows.jsonl");
}

TEST_F(ResolveTest, TellsTheNameOfASnapshot) {
  EXPECT_EQ(NameOfSnapshot(Repo() + "/snapshots/" + kOld), std::string("org/tiny@") + kOld);
  EXPECT_EQ(NameOfSnapshot(Repo() + "/snapshots/" + kOld + "/"), std::string("org/tiny@") + kOld);
  EXPECT_EQ(NameOfSnapshot("models/smollm2"), "");
}

TEST_F(ResolveTest, KnowsWhatTheCommitDoesNotHave) {
  AddModel(kOld, "main");
  Put(Repo() + "/.no_exist/" + kOld + "/chat_template.jinja", "");
  Put(Repo() + "/.no_exist/" + kNew + "/tokenizer.json", "");
  const auto found = ResolveModel("org/tiny", settings_);
  ASSERT_THAT(found, IsOk());
  EXPECT_THAT(found->known_absent, ElementsAre("chat_template.jinja"));
}

TEST_F(ResolveTest, PinsNamesToCommitsAndLeavesPaths) {
  AddModel(kOld, "main");
  std::string model = "org/tiny", path = dir_.path(), none;
  std::vector<std::string> notes;
  const std::vector<ModelOption> options = {
      {"trainer.model", &model}, {"server.model", &path}, {"trainer.critic.model", &none}};
  ASSERT_THAT(PinModels(options, "", settings_, &notes), IsOk());
  EXPECT_EQ(model, std::string("org/tiny@") + kOld);
  EXPECT_EQ(path, dir_.path());
  EXPECT_THAT(notes, IsEmpty());
  ASSERT_THAT(FindModels(options, settings_), IsOk());
  EXPECT_EQ(model, Repo() + "/snapshots/" + kOld);
}

TEST_F(ResolveTest, ARunThatGoesOnKeepsItsCommitAndSaysThatTheBranchMoved) {
  AddModel(kOld, "v1");
  AddModel(kNew, "main");
  const std::string before = std::string("trainer:\n  model: org/tiny@") + kOld + "\n";
  std::string model = "org/tiny";
  std::vector<std::string> notes;
  ASSERT_THAT(PinModels({{"trainer.model", &model}}, before, settings_, &notes), IsOk());
  EXPECT_EQ(model, std::string("org/tiny@") + kOld);
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_THAT(notes[0], HasSubstr(std::string("main is at commit ") + kNew +
                                  " now; the run goes on "
                                  "with commit " +
                                  kOld));
  // A commit that is named is taken, and so is another model.
  model = std::string("org/tiny@") + kNew;
  ASSERT_THAT(PinModels({{"trainer.model", &model}}, before, settings_, &notes), IsOk());
  EXPECT_EQ(model, std::string("org/tiny@") + kNew);
}

TEST_F(ResolveTest, PinningNamesEveryOptionThatCannotBeFound) {
  std::string a = "org/a", b = "org/b";
  std::vector<std::string> notes;
  const auto pinned =
      PinModels({{"trainer.model", &a}, {"server.model", &b}}, "", settings_, &notes);
  EXPECT_THAT(pinned, FailsWith(kNotFound, "trainer.model: model org/a: no such directory"));
  EXPECT_THAT(pinned, FailsWith(kNotFound, "\nserver.model: model org/b: no such directory"));
  EXPECT_EQ(a, "org/a");
}

}  // namespace
}  // namespace tandem::hub
