#include "trainer/run/tensorboard_writer.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;

TEST(Crc32c, GivesThePublishedCheckValues) {
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);  // RFC 3720, B.4
  EXPECT_EQ(Crc32c(""), 0u);
}

TEST(TfRecord, FramesWithLengthAndTwoMaskedChecksums) {
  const std::string record = TfRecord("abc");
  ASSERT_EQ(record.size(), 8u + 4 + 3 + 4);
  EXPECT_EQ(record.substr(0, 8), std::string("\x03\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(record.substr(12, 3), "abc");
}

TEST(TensorboardWriter, EncodesAScalarAsAnEvent) {
  TempDir directory;
  auto writer = TensorboardWriter::Create(directory.path(), 1000);
  ASSERT_THAT(writer, IsOk());
  ASSERT_THAT(
      (*writer)->Write(300, 1.0,
                       std::vector<std::pair<std::string, double>>{
                           {"a/b", 0.5}, {"nan", std::numeric_limits<double>::quiet_NaN()}}),
      IsOk());
  const std::string contents = *ReadFile(directory / "events.out.tfevents.1000.tandem");
  // wall_time 1.0 | step 300 | summary { value { tag "a/b" simple_value 0.5 } }
  const std::string event(
      "\x09\0\0\0\0\0\0\xf0\x3f"
      "\x10\xac\x02"
      "\x2a\x0c\x0a\x0a\x0a\x03"
      "a/b"
      "\x15\0\0\0\x3f",
      26);
  const std::string record = TfRecord(event);
  ASSERT_GE(contents.size(), record.size());
  EXPECT_EQ(contents.substr(contents.size() - record.size()), record);
  EXPECT_NE(contents.find("brain.Event:2"), std::string::npos);
}

}  // namespace
}  // namespace tandem::trainer
