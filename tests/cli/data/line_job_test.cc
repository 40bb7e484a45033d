#include "cli/data/line_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <string>

#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem::cli {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;

using Row = absl::StatusOr<std::optional<nlohmann::ordered_json>>;

class LineJobTest : public ::testing::Test {
 protected:
  LineJobTest() : job_{directory_ / "in.jsonl", directory_ / "out.jsonl", "k 1\n", 4} {
    Put("{\"n\":1}\n\n{\"n\":2}\n{\"n\":3}\n");
  }

  void Put(const std::string& lines) { EXPECT_THAT(WriteFileAtomically(job_.data, lines), IsOk()); }
  std::string Out() { return *ReadFile(job_.out); }
  absl::StatusOr<LineCounts> Run(const LineWork& work) {
    return RunLines(job_, work, [](int64_t, int64_t) {});
  }

  TempDir directory_;
  LineJob job_;
};

Row Square(const nlohmann::json& line, int64_t) {
  const auto n = line["n"].get<int64_t>();
  return nlohmann::ordered_json{{"square", n * n}};
}

TEST_F(LineJobTest, RowsComeInTheOrderOfTheLinesWhateverEndsFirst) {
  std::latch second_is_done(1);
  const auto counts = Run([&](const nlohmann::json& line, int64_t number) -> Row {
    if (line["n"] == 1) second_is_done.wait();
    if (line["n"] == 2) second_is_done.count_down();
    return Square(line, number);
  });
  ASSERT_THAT(counts, IsOk());
  EXPECT_EQ(Out(),
            "{\"square\":1,\"line\":1}\n{\"square\":4,\"line\":3}\n{\"square\":9,\"line\":4}\n");
  EXPECT_EQ(counts->rows, 3);
}

TEST_F(LineJobTest, GoesOnAfterTheLastWholeRow) {
  ASSERT_THAT(WriteFileAtomically(job_.out, "{\"square\":1,\"line\":1}\n{\"squa"), IsOk());
  ASSERT_THAT(WriteFileAtomically(job_.out + ".settings", job_.settings), IsOk());
  std::atomic<int> asked = 0;
  const auto counts = Run([&](const nlohmann::json& line, int64_t number) -> Row {
    ++asked;
    return Square(line, number);
  });
  ASSERT_THAT(counts, IsOk());
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(counts->resumed, 1);
  EXPECT_EQ(Out(),
            "{\"square\":1,\"line\":1}\n{\"square\":4,\"line\":3}\n{\"square\":9,\"line\":4}\n");
}

TEST_F(LineJobTest, ALineWithoutARowIsCounted) {
  const auto counts = Run([](const nlohmann::json& line, int64_t number) -> Row {
    if (line["n"] == 2) return std::nullopt;
    return Square(line, number);
  });
  ASSERT_THAT(counts, IsOk());
  EXPECT_EQ(counts->skipped, 1);
  EXPECT_EQ(Out(), "{\"square\":1,\"line\":1}\n{\"square\":9,\"line\":4}\n");
}

TEST_F(LineJobTest, AnErrorNamesItsLineAndTheRowsBeforeItStand) {
  job_.workers = 1;
  const auto counts = Run([](const nlohmann::json& line, int64_t number) -> Row {
    if (line["n"] == 2) return InvalidArgument("no two");
    return Square(line, number);
  });
  EXPECT_THAT(counts.status(), FailsWith(absl::StatusCode::kInvalidArgument, "in.jsonl:3: no two"));
  EXPECT_EQ(Out(), "{\"square\":1,\"line\":1}\n");
  Put("{\"n\":1}\nnot json\n");
  EXPECT_THAT(Run(Square).status(),
              FailsWith(absl::StatusCode::kInvalidArgument, "in.jsonl:2: not a JSON object"));
}

TEST_F(LineJobTest, RefusesRowsOfOthersAndOtherSettings) {
  ASSERT_THAT(Run(Square), IsOk());
  job_.settings = "k 2\n";
  EXPECT_THAT(Run(Square).status(),
              FailsWith(absl::StatusCode::kInvalidArgument, "was begun with `k 1`, not `k 2`"));
  ASSERT_THAT(WriteFileAtomically(job_.out, "{\"text\":\"mine\"}\n"), IsOk());
  EXPECT_THAT(Run(Square).status(),
              FailsWith(absl::StatusCode::kInvalidArgument, "out.jsonl:1 has no \"line\""));
}

}  // namespace
}  // namespace tandem::cli
