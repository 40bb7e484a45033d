#include "common/tables/parquet_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "common/files/file_system.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Three rows in row groups of two, written by pyarrow (write_parquet.py beside it).
constexpr char kThreeRows[] = TANDEM_SOURCE_DIR "/tests/testdata/foreign/format3/records.parquet";

TEST(ParquetStream, GivesMetadataAndRowsAPartAtATime) {
  auto stream = ParquetStream::Open(kThreeRows);
  ASSERT_THAT(stream, IsOk());
  ASSERT_TRUE((*stream)->Metadata("tandem_capture").has_value());
  EXPECT_THAT(*(*stream)->Metadata("tandem_capture"), StartsWith("{\"tandem_capture\": 3"));
  EXPECT_EQ((*stream)->Metadata("another"), std::nullopt);
  EXPECT_EQ((*stream)->num_rows(), 3);
  const auto first = (*stream)->Next(2);
  ASSERT_THAT(first, IsOk());
  EXPECT_EQ(std::ranges::count(*first, '\n'), 2);
  EXPECT_THAT(*first, StartsWith("{\"token_ids\":[1,40,7,50,2],\"prompt_length\":2,"));
  const auto second = (*stream)->Next(2);
  ASSERT_THAT(second, IsOk());
  EXPECT_THAT(*second, StartsWith("{\"token_ids\":[3,2],"));
  EXPECT_EQ(*(*stream)->Next(2), "");
}

TEST(ParquetStream, WritesFloatsInTheirOwnDigitsAndWhatIsNotFiniteAsText) {
  auto stream = ParquetStream::Open(kThreeRows);
  ASSERT_THAT(stream, IsOk());
  const auto rows = (*stream)->Next(3);
  ASSERT_THAT(rows, IsOk());
  EXPECT_THAT(*rows,
              HasSubstr("\"behaviour_logprobs\":[null,-0.5,null,\"NaN\",\"-Infinity\",-1e-7]"));
  EXPECT_THAT(*rows, HasSubstr("\"behaviour_top_ids\":[null,[9,3],[],[6],[5,4,3],[4]]"));
}

TEST(ParquetStream, FilesThatCannotBeReadSayWhy) {
  TempDir dir;
  const std::string path = dir / "x.parquet";
  EXPECT_THAT(ParquetStream::Open(path), FailsWith(absl::StatusCode::kNotFound, "x.parquet"));
  for (const char* contents : {"", "PAR1....PAR1", "PAR1\xff\xff\xff\xffPAR1"}) {
    ASSERT_THAT(WriteFileAtomically(path, contents), IsOk());
    EXPECT_THAT(ParquetStream::Open(path), FailsWith(absl::StatusCode::kInvalidArgument,
                                                     path + ": cannot be read as Parquet: "));
  }
}

TEST(ParquetStream, ADamagedPageEndsTheRowsWithAnError) {
  TempDir dir;
  std::string bytes = *ReadFile(kThreeRows);
  for (size_t i = 4; i < 1500; ++i) bytes[i] = static_cast<char>(~bytes[i]);
  ASSERT_THAT(WriteFileAtomically(dir / "x.parquet", bytes), IsOk());
  auto stream = ParquetStream::Open(dir / "x.parquet");
  ASSERT_THAT(stream, IsOk());
  EXPECT_THAT((*stream)->Next(3), FailsWith(absl::StatusCode::kInvalidArgument,
                                            "x.parquet: cannot be read as Parquet: "));
  EXPECT_EQ(*(*stream)->Next(3), "");
}

}  // namespace
}  // namespace tandem
