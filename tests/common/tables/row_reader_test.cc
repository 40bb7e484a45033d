#include "common/tables/row_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "common/files/file_system.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

// tests/parity/tables_parity_test.py reads what pyarrow, pandas and the library `datasets` wrote.
namespace tandem {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;
using ::testing::ElementsAre;

class RowReaderTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& contents) {
    std::filesystem::create_directories(std::filesystem::path(directory_ / name).parent_path());
    EXPECT_THAT(WriteFileAtomically(directory_ / name, contents), IsOk());
    return directory_ / name;
  }

  // "PLACE JSON" of every row, without the directory, or the error.
  absl::StatusOr<std::vector<std::string>> Read(const std::string& path,
                                                const DatasetPart& part = {}) {
    auto reader = RowReader::Open(path, part);
    if (!reader.ok()) return reader.status();
    std::vector<std::string> rows;
    while (true) {
      auto row = (*reader)->Next();
      if (!row.ok()) return row.status();
      if (!row->has_value()) return rows;
      const std::string place = (*row)->place.substr((directory_ / "").size());
      rows.push_back(place + " " + std::string((*row)->json));
    }
  }

  absl::Status Fails(const std::string& path, const DatasetPart& part = {}) {
    return Read(path, part).status();
  }

  TempDir directory_;
};

TEST_F(RowReaderTest, LinesAreGivenAsTheyStandAndCountedWithBlankOnes) {
  EXPECT_THAT(*Read(Write("x.jsonl", "{\"a\": 1}\r\n \n{\"a\":  2}")),
              ElementsAre("x.jsonl:1 {\"a\": 1}", "x.jsonl:3 {\"a\":  2}"));
  EXPECT_THAT(*Read(Write("x", "{}\n")), ElementsAre("x:1 {}"))
      << "a name that says no format is JSON lines";
  EXPECT_THAT(*Read(Write("e.jsonl", "")), ElementsAre());
}

TEST_F(RowReaderTest, ALineLongerThanAPartIsWhole) {
  const std::string line = "{\"a\": \"" + std::string(3 << 20, 'x') + "\"}";
  const auto rows = Read(Write("x.jsonl", line + "\n" + line + "\n"));
  ASSERT_THAT(rows, IsOk());
  EXPECT_THAT(*rows, ElementsAre("x.jsonl:1 " + line, "x.jsonl:2 " + line));
}

TEST_F(RowReaderTest, AJsonFileIsAnArrayOrLines) {
  EXPECT_THAT(*Read(Write("x.json", "\xef\xbb\xbf [{\"a\": \"b\\nc\",\n\"n\": 1e400},\r\n{}]")),
              ElementsAre("x.json: row 1 {\"a\": \"b\\nc\", \"n\": 1e400}", "x.json: row 2 {}"));
  EXPECT_THAT(*Read(Write("l.json", "{\"a\": 1}\n{\"a\": 2}\n")),
              ElementsAre("l.json:1 {\"a\": 1}", "l.json:2 {\"a\": 2}"));
  EXPECT_THAT(*Read(Write("n.json", "[]")), ElementsAre());
  EXPECT_THAT(Fails(Write("d.json", "[{\"a\": 1},\n {\"b\": ]")),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        "d.json: cannot be read as JSON: no JSON array of rows: expected value at "
                        "line 2 column 8"));
}

TEST_F(RowReaderTest, CellsOfCsvAreTextsAndEmptyOnesNull) {
  EXPECT_THAT(
      *Read(Write("x.csv", "\xef\xbb\xbfprompt,answer\n\"a, \"\"b\"\"\nc\",007\n\n\xc3\xbc,\n")),
      ElementsAre("x.csv: row 1 {\"prompt\":\"a, \\\"b\\\"\\nc\",\"answer\":\"007\"}",
                  "x.csv: row 2 {\"prompt\":\"\xc3\xbc\",\"answer\":null}"));
  EXPECT_THAT(*Read(Write("x.tsv", "p\ta\nx, y\t1\n")),
              ElementsAre("x.tsv: row 1 {\"p\":\"x, y\",\"a\":\"1\"}"));
  EXPECT_THAT(*Read(Write("h.csv", "prompt,answer\n")), ElementsAre());
}

TEST_F(RowReaderTest, DamagedCsvIsNamedWithItsLine) {
  EXPECT_THAT(
      Fails(Write("x.csv", "a,b\n1,2\n3\n")),
      FailsWith(absl::StatusCode::kInvalidArgument,
                "x.csv: cannot be read as CSV: line 3: the record has 1 cells and the header "
                "has 2"));
  EXPECT_THAT(Fails(Write("x.csv", "a,b\n1,\xff\n")),
              FailsWith(absl::StatusCode::kInvalidArgument, "line 2: cell 2 is not UTF-8"));
  EXPECT_THAT(
      Fails(Write("x.csv", "a,b,a\n1,2,3\n")),
      FailsWith(absl::StatusCode::kInvalidArgument, "two columns have the name \"a\": rename one"));
  EXPECT_THAT(Fails(Write("x.csv", "")),
              FailsWith(absl::StatusCode::kInvalidArgument, "no header line"));
}

TEST_F(RowReaderTest, FilesOfAnotherFormatAreNamed) {
  for (const char* name : {"x.parquet", "x.arrow", "x.feather"}) {
    for (const char* contents :
         {"", "{\"prompt\": 1}\n", "PAR1....PAR1", "PAR1\xff\xff\xff\xffPAR1", "ARROW1"}) {
      EXPECT_THAT(Fails(Write(name, contents)),
                  FailsWith(absl::StatusCode::kInvalidArgument,
                            std::string(name) + ": cannot be read as "));
    }
  }
  EXPECT_THAT(Fails(Write("x.csv.gz", "\x1f\x8b\x08 not gzip")),
              FailsWith(absl::StatusCode::kInvalidArgument, "x.csv.gz: cannot be read as CSV: "));
}

TEST_F(RowReaderTest, APathThatIsNotThereSaysSo) {
  EXPECT_THAT(Fails(directory_ / "none.jsonl"),
              FailsWith(absl::StatusCode::kNotFound, "none.jsonl"));
  EXPECT_THAT(Fails("openai/gsm8k"),
              FailsWith(absl::StatusCode::kNotFound,
                        "data set openai/gsm8k: no such file or directory, and it is not in"));
  EXPECT_THAT(Fails("openai/gsm8k:train"),
              FailsWith(absl::StatusCode::kNotFound, "tandem fetch --dataset openai/gsm8k "));
  EXPECT_THAT(Fails("data/none.jsonl"), FailsWith(absl::StatusCode::kNotFound, "data/none.jsonl"));
  EXPECT_THAT(Fails(directory_ / "*.jsonl"),
              FailsWith(absl::StatusCode::kNotFound, "no file matches"));
}

// The cache as `tandem fetch --dataset` and huggingface_hub leave it.
TEST_F(RowReaderTest, ANameOnTheHubIsReadFromTheCache) {
  const std::string commit(40, 'a'), repo = "cache/datasets--org--sums/";
  std::filesystem::create_directories(directory_ / (repo + "snapshots/" + commit + "/data"));
  std::filesystem::create_directories(directory_ / (repo + "refs"));
  Write(repo + "refs/main", commit);
  const std::string data = repo + "snapshots/" + commit + "/data/";
  Write(data + "train-00000-of-00001.jsonl", "{\"a\": 1}\n");
  Write(data + "test-00000-of-00001.jsonl", "{\"a\": 2}\n");
  setenv("HF_HUB_CACHE", (directory_ / "cache").c_str(), 1);
  for (const auto& [name, row] :
       {std::pair("org/sums", "{\"a\": 1}"), std::pair("org/sums:test", "{\"a\": 2}"),
        std::pair("org/sums@main:train", "{\"a\": 1}")}) {
    auto reader = RowReader::Open(name);
    ASSERT_THAT(reader, IsOk()) << name;
    const auto first = (*reader)->Next();
    ASSERT_TRUE(first.ok() && first->has_value());
    EXPECT_EQ((*first)->json, row) << name;
  }
  EXPECT_THAT(Fails("org/sums:dev"),
              FailsWith(absl::StatusCode::kInvalidArgument, "no split 'dev'"));
  unsetenv("HF_HUB_CACHE");
}

TEST_F(RowReaderTest, APatternIsItsFilesInOrder) {
  Write("b-1.jsonl", "{\"a\": 2}\n");
  Write("b-0.jsonl", "\n{\"a\": 1}\n");
  auto reader = RowReader::Open(directory_ / "b-*.jsonl");
  ASSERT_THAT(reader, IsOk());
  EXPECT_EQ((*reader)->dataset().Describe(), "JSON lines, 2 files");
  std::vector<int64_t> numbers;
  for (auto row = (*reader)->Next(); row.ok() && row->has_value(); row = (*reader)->Next()) {
    numbers.push_back((*row)->number);
  }
  EXPECT_THAT(numbers, ElementsAre(1, 2)) << "the blank line counts, and so do files before";
  EXPECT_THAT(*Read(directory_ / "b-*.jsonl"),
              ElementsAre("b-0.jsonl:2 {\"a\": 1}", "b-1.jsonl:1 {\"a\": 2}"));
}

TEST_F(RowReaderTest, ARepositoryIsReadBySplit) {
  Write("repo/data/train-00000-of-00002.jsonl", "{\"a\": 1}\n");
  Write("repo/data/train-00001-of-00002.jsonl", "{\"a\": 2}\n");
  Write("repo/data/test-00000-of-00001.jsonl", "{\"a\": 3}\n");
  Write("repo/.git/data/train-00000-of-00001.jsonl", "{\"a\": 4}\n");
  const std::string repo = directory_ / "repo";
  EXPECT_THAT(*Read(repo), ElementsAre("repo/data/train-00000-of-00002.jsonl:1 {\"a\": 1}",
                                       "repo/data/train-00001-of-00002.jsonl:1 {\"a\": 2}"));
  const auto test = ElementsAre("repo/data/test-00000-of-00001.jsonl:1 {\"a\": 3}");
  EXPECT_THAT(*Read(repo + ":test"), test);
  EXPECT_THAT(*Read(repo, {.split = "test"}), test);
  EXPECT_THAT(Fails(repo + ":tset"),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        "no split 'tset'; the splits are test, train; did you mean 'test'?"));
  EXPECT_THAT(Fails(repo, {.subset = "main"}),
              FailsWith(absl::StatusCode::kInvalidArgument, "no subset 'main'"));
  EXPECT_EQ(DatasetPlace(repo + ":test"), repo);
  EXPECT_EQ(DatasetPlace(directory_ / "repo/data/*.jsonl"), directory_ / "repo/data/");
}

TEST_F(RowReaderTest, WhereSeveralAreThereOneIsToBeNamed) {
  Write("repo/data/a-00000-of-00001.jsonl", "{}\n");
  Write("repo/data/b-00000-of-00001.jsonl", "{}\n");
  EXPECT_THAT(Fails(directory_ / "repo"),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        "which split is meant? the splits are a, b; name one (data.split"));
  Write("mixed/train.jsonl", "{}\n");
  Write("mixed/train.csv", "a\n");
  EXPECT_THAT(Fails(directory_ / "mixed"), FailsWith(absl::StatusCode::kInvalidArgument,
                                                     "name one file, or files of one format"));
  std::filesystem::create_directories(directory_ / "empty");
  EXPECT_THAT(Fails(directory_ / "empty"),
              FailsWith(absl::StatusCode::kNotFound, "the directory has no data files"));
  EXPECT_THAT(Fails(directory_ / "mixed/train.csv:test"),
              FailsWith(absl::StatusCode::kInvalidArgument, "is a file and has no split 'test'"));
}

TEST_F(RowReaderTest, DamagedDirectoriesOfTheLibraryAreNamed) {
  Write("d/dataset_dict.json", "[1]");
  EXPECT_THAT(Fails(directory_ / "d"), FailsWith(absl::StatusCode::kInvalidArgument,
                                                 "dataset_dict.json: is no JSON object"));
  Write("s/state.json", "{\"_data_files\": []}");
  EXPECT_THAT(Fails(directory_ / "s"),
              FailsWith(absl::StatusCode::kInvalidArgument, "state.json: no \"_data_files\""));
  Write("s/state.json", "{\"_data_files\": [{\"filename\": \"../x.arrow\"}]}");
  EXPECT_THAT(Fails(directory_ / "s"),
              FailsWith(absl::StatusCode::kInvalidArgument, "has no plain \"filename\""));
  Write("s/state.json",
        "{\"_data_files\": [], \"_indices_data_files\": [{\"filename\": \"i.arrow\"}]}");
  EXPECT_THAT(Fails(directory_ / "s"),
              FailsWith(absl::StatusCode::kInvalidArgument, "load and save it with a new one"));
}

}  // namespace
}  // namespace tandem
