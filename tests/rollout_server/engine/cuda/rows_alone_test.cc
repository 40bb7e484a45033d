#include "rollout_server/engine/cuda/rows_alone.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace tandem::rollout::cuda {
namespace {

using tandem::testing::FailsWith;
using tandem::testing::IsOk;

// A kernel with two bytes a row: the row's number, and value(row, count).
template <typename Value>
auto Kernel(const Value& value) {
  return [value](int64_t first, int64_t count) {
    std::vector<uint8_t> bytes;
    for (int64_t row = first; row < first + count; ++row) {
      bytes.push_back(static_cast<uint8_t>(row));
      bytes.push_back(static_cast<uint8_t>(value(row, count)));
    }
    return bytes;
  };
}

TEST(RowsAlone, AcceptsAKernelWhoseRowsDoNotSeeEachOther) {
  EXPECT_THAT(CheckRowsAlone("a sum", 20, Kernel([](int64_t row, int64_t) { return row * row; })),
              IsOk());
}

TEST(RowsAlone, NamesTheKernelAndTheRowWhoseBitsDependOnHowManyThereAre) {
  const auto split_by_rows = [](int64_t row, int64_t count) { return row == 6 && count < 17; };
  EXPECT_THAT(CheckRowsAlone("a product over 576 inputs", 20, Kernel(split_by_rows)),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        "a product over 576 inputs gives row 6 of 20 other bits with 0 others"));
  const auto threes = [](int64_t, int64_t count) { return count == 3; };
  EXPECT_THAT(CheckRowsAlone("a sum", 20, Kernel(threes)),
              FailsWith(absl::StatusCode::kFailedPrecondition, "with 2 others than with all"));
}

TEST(RowsAlone, RefusesACallThatGivesAnotherNumberOfBytes) {
  const auto short_of_one = [](int64_t, int64_t count) {
    return std::vector<uint8_t>(static_cast<size_t>(count == 20 ? 40 : 1));
  };
  EXPECT_THAT(CheckRowsAlone("a sum", 20, short_of_one),
              FailsWith(absl::StatusCode::kInternal, "1 bytes for 1 rows of 2"));
}

}  // namespace
}  // namespace tandem::rollout::cuda
