#include "drift_lab/records/records_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/files/file_system.h"
#include "drift_lab/records/records_builder.h"
#include "drift_lab/records/records_summary.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem::drift {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;
using ::testing::ElementsAre;

constexpr auto kBadFile = absl::StatusCode::kInvalidArgument;
constexpr char kHeader[] = "{\"tandem_capture\": 3, \"vocab_size\": 100}\n";
constexpr char kPlainRow[] =
    "{\"token_ids\": [1, 2, 3], \"prompt_length\": 1, \"behaviour_logprobs\": [null, -1, -2]}\n";

class RecordsFile : public ::testing::Test {
 protected:
  absl::StatusOr<Records> Read(const std::string& contents) {
    EXPECT_THAT(WriteFileAtomically(path_, contents), IsOk());
    return ReadRecords(path_);
  }
  // The message of the error that a row of these fields gives.
  std::string RowFault(const std::string& fields) {
    const absl::StatusOr<Records> records =
        Read(absl::StrCat(kHeader, kPlainRow, "{", fields, "}\n"));
    EXPECT_EQ(records.status().code(), kBadFile);
    return std::string(records.status().message());
  }

  TempDir directory_;
  const std::string path_ = directory_ / "records.jsonl";
};

TEST_F(RecordsFile, ReadsRowsOfDifferentFields) {
  const absl::StatusOr<Records> records = Read(absl::StrCat(
      kHeader, kPlainRow, "\n  \n",
      R"({"token_ids": [4, 5, 6, 7], "loss_mask": [0, 1, 0, 1], "proximal_logprobs": [null, -3, )"
      R"("NaN", -4], "version_spans": [[7, 1], [8, 1]], "proximal_top_ids": [[], [5, 9], [], [7]], )"
      R"("proximal_top_logprobs": [[], [-3, -4], [], [-4]]})"));  // no line break at the end
  ASSERT_THAT(records, IsOk());
  EXPECT_EQ(records->num_rows(), 2);
  EXPECT_THAT(records->offsets, ElementsAre(0, 3, 7));
  EXPECT_THAT(records->token_ids, ElementsAre(1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(records->drawn, ElementsAre(0, 1, 1, 0, 1, 0, 1));
  const auto behaviour = records->column(Column::kBehaviour);
  const auto proximal = records->column(Column::kProximal);
  ASSERT_EQ(behaviour.size(), 7);
  ASSERT_EQ(proximal.size(), 7);
  EXPECT_EQ(behaviour[2], -2);
  EXPECT_FALSE(HasValue(behaviour[6]));
  EXPECT_FALSE(HasValue(proximal[2]));
  EXPECT_EQ(proximal[6], -4);
  EXPECT_TRUE(HasValue(proximal[5]) && std::isnan(proximal[5]));
  EXPECT_EQ(records->num_given[static_cast<size_t>(Column::kProximal)], 3);
  EXPECT_EQ(records->num_nan[static_cast<size_t>(Column::kProximal)], 0);  // not of a drawn token
  EXPECT_FALSE(records->has(Column::kReference));
  EXPECT_THAT(records->proximal_top.offsets, ElementsAre(0, 0, 0, 0, 0, 2, 2, 3));
  EXPECT_THAT(records->proximal_top.ids, ElementsAre(5, 9, 7));
  ASSERT_EQ(records->rows[1].spans.size(), 2);
  EXPECT_EQ(records->rows[1].spans[0].version, 7);
}

TEST_F(RecordsFile, WhatStandsAtTokensThatWereNotDrawnIsNotCountedAsAFault) {
  const absl::StatusOr<Records> records = Read(absl::StrCat(
      kHeader,
      R"({"token_ids": [1, 2, 3, 4, 5, 6], "loss_mask": [0, 0, 0, 0, 1, 1], "behaviour_logprobs": )"
      R"(["NaN", 0, 1, "-Infinity", -0.5, -1], "proximal_logprobs": [null, -9999, "Infinity", 7, )"
      R"("NaN", -1]})"));
  ASSERT_THAT(records, IsOk());
  EXPECT_EQ(records->num_nan[static_cast<size_t>(Column::kBehaviour)], 0);
  EXPECT_EQ(records->num_nan[static_cast<size_t>(Column::kProximal)], 1);
  const RecordsSummary summary = Summarize(*records);
  EXPECT_EQ(summary.columns[0].num_nan, 1);  // wherever it stands
  ASSERT_EQ(summary.findings.size(), 1);
  EXPECT_THAT(summary.findings[0].text,
              ::testing::HasSubstr("proximal_logprobs: NaN at 1 of 2 drawn tokens, first in row 0, "
                                   "element 4."));
}

TEST_F(RecordsFile, GivesTheSameRecordsAfterWriting) {
  const absl::StatusOr<Records> records = Read(absl::StrCat(
      kHeader, kPlainRow,
      R"({"token_ids": [4, 5, 6], "loss_mask": [0, 1, 0], "behaviour_logprobs": [-0.1, "NaN", )"
      R"("-Infinity"], "advantages": [null, 0.3, null], "reference_logprobs": [null, null, null], )"
      R"("behaviour_top_ids": [[], [5, 9], []], "behaviour_top_logprobs": [[], [-3e-7, null], []], )"
      R"("group_id": "g\"1", "reward": 0.1, "step": 3, "weight_version": 5, "finish_reason": "stop"})"
      "\n",
      R"({"token_ids": [8, 9], "prompt_length": 2, "proximal_logprobs": [-1, 0], "advantage": 1e-9, )"
      R"("stop_token_kept": true, "prompt_text": "\u00e9"})"));
  ASSERT_THAT(records, IsOk());
  const std::string first = directory_ / "first.jsonl", second = directory_ / "second.jsonl";
  ASSERT_THAT(WriteRecords(first, *records), IsOk());
  const absl::StatusOr<Records> again = ReadRecords(first);
  ASSERT_THAT(again, IsOk());
  ASSERT_THAT(WriteRecords(second, *again), IsOk());
  EXPECT_EQ(*ReadFile(first), *ReadFile(second));
  EXPECT_EQ(again->token_ids, records->token_ids);
  EXPECT_EQ(again->drawn, records->drawn);
  EXPECT_EQ(again->num_given, records->num_given);
  EXPECT_EQ(again->num_nan, records->num_nan);
  EXPECT_TRUE(again->has(Column::kReference));
  EXPECT_EQ(again->behaviour_top.offsets, records->behaviour_top.offsets);
  EXPECT_EQ(again->rows[1].group_id, "g\"1");
  EXPECT_EQ(again->rows[1].reward, 0.1);
  EXPECT_EQ(again->rows[2].advantage, 1e-9);
  EXPECT_EQ(again->column(Column::kBehaviour)[3], -0.1f);
}

TEST_F(RecordsFile, NamesTheLineOfAWrongField) {
  EXPECT_THAT(
      Read(absl::StrCat(kHeader, "\n", kPlainRow, R"({"row_id": "r7", "token_ids": [1, x]})")),
      FailsWith(kBadFile, "records.jsonl:4 (row \"r7\"): token_ids: expected a token id"));
  EXPECT_THAT(Read("{\"tandem_capture\": 4}\n"), FailsWith(kBadFile, "records.jsonl:1: tandem_"));
}

TEST_F(RecordsFile, HoldsRowsToTheRulesOfThePage) {
  const std::string ids = R"("token_ids": [1, 2, 3], )";
  const std::string drawn = R"("prompt_length": 1, )";
  const std::string logprobs = R"("behaviour_logprobs": [null, -1, -2])";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {drawn + logprobs, "token_ids: expected the ids of the row's tokens, found none"},
      {ids + logprobs, "prompt_length: expected it or loss_mask, found neither"},
      {ids + R"("prompt_length": 1)",
       "behaviour_logprobs: expected it or proximal_logprobs in every row, found neither"},
      {ids + R"("prompt_length": 4, )" + logprobs,
       "prompt_length: expected 0 to 3 (the tokens of the row), found 4"},
      {ids + R"("prompt_length": -1, )" + logprobs, "found -1"},
      {ids + R"("loss_mask": [0, 1], )" + logprobs,
       "loss_mask: expected 3 elements, one for each of token_ids, found 2"},
      {ids + R"("prompt_length": 2, "loss_mask": [0, 1, 1], )" + logprobs,
       "loss_mask: expected 0 on the 2 tokens of the prompt (prompt_length), found 1 at element 1"},
      {ids + drawn + R"("proximal_logprobs": [-1, -2])",
       "proximal_logprobs: expected 3 elements, one for each of token_ids, found 2"},
      {R"("token_ids": [1, 100], "prompt_length": 1, "behaviour_logprobs": [null, -1])",
       "token_ids: expected ids of at least 0 and below the header's vocab_size, 100, found 100 at "
       "element 1"},
      {R"("token_ids": [-1], "prompt_length": 0, "behaviour_logprobs": [-1])",
       "found -1 at element 0"},
      {ids + drawn + R"("advantage": 1, "advantages": [0, 1, 1], )" + logprobs,
       "advantages: expected it or advantage, found both"},
      {ids + drawn + R"("version_spans": [[1, 1]], )" + logprobs,
       "version_spans: expected numbers of tokens that add up to the 2 drawn ones, found 1"},
      {ids + drawn + R"("version_spans": [[1, 0], [2, 2]], )" + logprobs, "found [1, 0]"},
      {ids + drawn + R"("version_spans": [[1, 9223372036854775807], [2, 2]], )" + logprobs,
       "version_spans: expected spans of 1 to 2 tokens"},
      {ids + drawn + R"("weight_version": 3, "version_spans": [[1, 2]], )" + logprobs,
       "weight_version: expected the version of every span"},
      {ids + drawn + R"("behaviour_top_ids": [[], [1], [2]], )" + logprobs,
       "behaviour_top_logprobs: expected beside behaviour_top_ids, found nothing"},
      {ids + drawn +
           R"("behaviour_top_ids": [[], [1], [2]], "behaviour_top_logprobs": [[], [-1, -2], [-1]], )" +
           logprobs,
       "behaviour_top_logprobs: expected 1 log-probs at element 1, as many as in "
       "behaviour_top_ids, found 2"},
  };
  for (const auto& [fields, message] : cases) {
    EXPECT_THAT(RowFault(fields), ::testing::HasSubstr("records.jsonl:3: ")) << fields;
    EXPECT_THAT(RowFault(fields), ::testing::HasSubstr(message)) << fields;
  }
}

TEST_F(RecordsFile, SaysWhatAFileIsThatIsNoRecordsFile) {
  using std::string_view_literals::operator""sv;
  const std::vector<std::pair<std::string_view, std::string>> cases = {
      {""sv, "found an empty file"},
      {"\n\n"sv, "found empty lines only"},
      {"\x1f\x8b\x08"sv, "is compressed with gzip"},
      {"PK\x03\x04"sv, "is a zip archive"},
      {"\x80\x04"sv, "is a Python pickle"},
      {"\xef\xbb\xbf{\"tandem_capture\": 3}"sv, "byte order mark"},
      {"[{\"tandem_capture\": 3}]"sv, "is a JSON array"},
      {"{\n \"tandem_capture\": 3\n}"sv, "JSON object on one line"},
      {"PAR1 and more"sv, "cannot be read as Parquet"},
  };
  for (const auto& [contents, message] : cases) {
    EXPECT_THAT(Read(std::string(contents)), FailsWith(kBadFile, message));
    EXPECT_THAT(Read(std::string(contents)), FailsWith(kBadFile, path_));
  }
}

TEST_F(RecordsFile, TellsDirectoriesAndMissingFiles) {
  EXPECT_THAT(ReadRecords(directory_ / "none"),
              FailsWith(absl::StatusCode::kNotFound,
                        "none: No such file or directory; expected records (docs/records.md)"));
  EXPECT_THAT(ReadRecords(directory_.path()),
              FailsWith(kBadFile, "found a directory: name one file"));
  ASSERT_THAT(WriteFileAtomically(directory_ / "manifest.json", "{}"), IsOk());
  EXPECT_THAT(ReadRecords(directory_.path()), FailsWith(kBadFile, "a capture of format 1 or 2"));
}

TEST_F(RecordsFile, IsToldFromOtherFiles) {
  ASSERT_THAT(WriteFileAtomically(path_, kHeader), IsOk());
  EXPECT_TRUE(IsRecordsFile(path_));
  ASSERT_THAT(WriteFileAtomically(path_, kPlainRow), IsOk());
  EXPECT_FALSE(IsRecordsFile(path_));
  ASSERT_THAT(WriteFileAtomically(path_, "[\"tandem_capture\"]"), IsOk());
  EXPECT_FALSE(IsRecordsFile(path_));
  EXPECT_FALSE(IsRecordsFile(directory_.path()));
  EXPECT_FALSE(IsRecordsFile(directory_ / "none"));
}

TEST_F(RecordsFile, ParquetGivesTheSameRecordsAsJsonLines) {
  const std::string place = TANDEM_SOURCE_DIR "/tests/testdata/foreign/format3/";
  const absl::StatusOr<Records> lines = ReadRecords(place + "records.jsonl");
  const absl::StatusOr<Records> parquet = ReadRecords(place + "records.parquet");
  ASSERT_THAT(lines, IsOk());
  ASSERT_THAT(parquet, IsOk());
  EXPECT_EQ(parquet->num_rows(), 3);
  EXPECT_EQ(parquet->header.behaviour.temperature, 0.7);
  ASSERT_THAT(WriteRecords(directory_ / "lines", *lines), IsOk());
  ASSERT_THAT(WriteRecords(directory_ / "parquet", *parquet), IsOk());
  EXPECT_EQ(*ReadFile(directory_ / "parquet"), *ReadFile(directory_ / "lines"));
}

TEST_F(RecordsFile, ARowThatDrewNothingHasNoVersions) {
  const absl::StatusOr<Records> records = Read(absl::StrCat(
      kHeader,
      R"({"token_ids": [1], "prompt_length": 1, "behaviour_logprobs": [null], "weight_version": 3})"));
  ASSERT_THAT(records, IsOk());
  EXPECT_THAT(records->drawn, ElementsAre(0));
  EXPECT_TRUE(records->rows[0].spans.empty());
}

TEST_F(RecordsFile, ReportsProgressByBytes) {
  std::string contents = kHeader;
  const std::string row = absl::StrCat(
      R"({"token_ids": [1], "prompt_length": 0, "behaviour_logprobs": [-1], "extra": {"a": ")",
      std::string(600000, 'x'), "\"}}\n");
  for (int i = 0; i < 4; ++i) contents += row;
  ASSERT_THAT(WriteFileAtomically(path_, contents), IsOk());
  std::vector<std::pair<int64_t, int64_t>> calls;
  ASSERT_THAT(
      ReadRecords(path_, [&](int64_t bytes, int64_t total) { calls.emplace_back(bytes, total); }),
      IsOk());
  ASSERT_EQ(calls.size(), 2);
  EXPECT_GT(calls[0].first, 1 << 20);
  EXPECT_EQ(calls[1].first, static_cast<int64_t>(contents.size()));
  EXPECT_EQ(calls[1].second, static_cast<int64_t>(contents.size()));
}

}  // namespace
}  // namespace tandem::drift
