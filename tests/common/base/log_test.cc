#include "common/base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "common/files/file_system.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem::log {
namespace {

using tandem::testing::FailsWith;
using tandem::testing::IsOk;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class LogTest : public ::testing::Test {
 protected:
  ~LogTest() override { EXPECT_THAT(Configure({}), IsOk()); }

  std::string path() const { return dir_ / "log"; }
  std::string Lines() const { return ReadFile(path()).value_or("no log file"); }

  tandem::testing::TempDir dir_;
};

TEST_F(LogTest, TextLinesHaveTimeLevelRoleMessageAndValues) {
  ASSERT_THAT(Configure({.file = path(), .role = "trainer"}), IsOk());
  Info("step done", {{"step", 3}, {"reward", 0.25f}, {"ok", true}, {"why", "two words"}});
  EXPECT_THAT(Lines(), ContainsRegex("^20[0-9][0-9]-[0-9-]+T[0-9:.]+Z INFO trainer: step done"));
  EXPECT_THAT(Lines(), HasSubstr("step done step=3 reward=0.25 ok=true why=\"two words\"\n"));
}

TEST_F(LogTest, JsonLinesCarryNumbersBareAndTextQuoted) {
  ASSERT_THAT(Configure({.format = Format::kJson, .file = path(), .role = "rollout_server"}),
              IsOk());
  Warning("a \"b\"\n", {{"n", int64_t{7}},
                        {"x", std::numeric_limits<double>::quiet_NaN()},
                        {"t", std::string("\xff")},
                        {"flag", false}});
  EXPECT_THAT(Lines(), HasSubstr(R"("level":"WARNING","role":"rollout_server",)"
                                 R"("message":"a \"b\"\n","n":7,"x":null,"t":")"));
  EXPECT_THAT(Lines(), HasSubstr(R"("flag":false})"));
}

TEST_F(LogTest, AValueWithALineBreakStaysOnOneLine) {
  ASSERT_THAT(Configure({.file = path()}), IsOk());
  Info("m", {{"text", "a\nb"}});
  EXPECT_THAT(Lines(), HasSubstr("text=\"a\\nb\"\n"));
}

// Such characters can come from a server's message, a file name or a prompt. Some terminals read
// 0x9b alone as "ESC [".
TEST_F(LogTest, NothingInALineActsOnATerminal) {
  ASSERT_THAT(Configure({.file = path(), .role = "trainer"}), IsOk());
  Info("m\x1b[2J\r\x07", {{"v", "a\x1b]0;title\x07"},
                          {"del", "b\x7f"},
                          {"c1", "c\xc2\x9b"},
                          {"raw", "d\x9b"},
                          {"turned", "e\xe2\x80\xae"},
                          {"letters", "\xc3\xa4\xe6\x97\xa5"}});
  EXPECT_THAT(Lines(), HasSubstr("m\\u001b[2J\\r\\u0007 v=\"a\\u001b]0;title\\u0007\" "
                                 "del=\"b\\u007f\" c1=\"c\\u009b\" raw=\"d\xef\xbf\xbd\" "
                                 "turned=\"e\\u202e\" letters=\xc3\xa4\xe6\x97\xa5\n"));
  EXPECT_THAT(LastLines(1).at(0).text, Not(HasSubstr("\x1b")));
  ASSERT_THAT(Configure({.format = Format::kJson, .file = path()}), IsOk());
  Info("m\x1b", {{"del", "b\x7f"}, {"c1", "c\xc2\x9b"}});
  EXPECT_THAT(Lines(), HasSubstr(R"("message":"m\u001b","del":"b\u007f","c1":"c\u009b"})"));
}

TEST_F(LogTest, LinesUnderTheLevelAreLeftOut) {
  ASSERT_THAT(Configure({.level = Level::kWarning, .file = path()}), IsOk());
  Info("quiet");
  Error("loud");
  EXPECT_THAT(Lines(), Not(HasSubstr("quiet")));
  EXPECT_THAT(Lines(), HasSubstr("ERROR loud"));
}

TEST_F(LogTest, TheNewestLinesAreRememberedByNumberWhateverTheFile) {
  ASSERT_THAT(Configure({.level = Level::kInfo, .role = "trainer"}), IsOk());
  Info("zeroth");
  const int64_t before = LastLines(1).at(0).number;
  Info("first", {{"step", 1}});
  Debug("too quiet");
  Info("second");
  const std::vector<NumberedLine> lines = LastLines(10, before);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].number, before + 1);
  EXPECT_THAT(lines[0].text, HasSubstr("INFO trainer: first step=1"));
  EXPECT_THAT(lines[1].text, HasSubstr("second"));
  EXPECT_THAT(LastLines(1, before).at(0).text, HasSubstr("second"));
  EXPECT_TRUE(LastLines(10, before + 2).empty()) << "nothing newer";
  EXPECT_FALSE(LastLines(10, before + 1000).empty()) << "a number of a process before this one";
}

TEST_F(LogTest, WhatIsRememberedIsBounded) {
  for (size_t i = 0; i < kRememberedLines + 5; ++i) Info("line");
  Info(std::string(2 * kRememberedLineBytes, 'x'));
  const std::vector<NumberedLine> lines = LastLines(1 << 30);
  EXPECT_EQ(lines.size(), kRememberedLines);
  EXPECT_EQ(lines.back().text.size(), kRememberedLineBytes);
  EXPECT_EQ(lines.back().number - lines.front().number, int64_t{kRememberedLines} - 1);
}

TEST_F(LogTest, AFileThatCannotBeOpenedIsNamed) {
  EXPECT_THAT(Configure({.file = dir_.path()}),
              FailsWith(absl::StatusCode::kUnavailable, dir_.path()));
}

}  // namespace
}  // namespace tandem::log
