// Groups of one process that are used by several threads at once, as when a trainer sums gradients
// while it pushes weights.
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/rank_threads.h"
#include "tests/support/status_matchers.h"

namespace tandem::comm {
namespace {

using ::tandem::testing::IsOk;
using ::tandem::testing::OnThreads;

// c10d does not lock its table of groups. Without a lock around it, this test crashed in more than
// half of its runs.
TEST(GroupThreadsTest, ThreadsMakeGroupsAndBeginOperationsSideBySide) {
  constexpr int kThreads = 4, kGroupsOfEach = 600;
  const auto store = Store::Host(0, Reach::kMachine).value();
  const auto body = [&](int thread) -> absl::Status {
    for (int i = 0; i < kGroupsOfEach; ++i) {
      const std::string name = absl::StrCat(thread, "/", i);
      auto group = Collective::Make(Backend::kGloo, store, {.name = name, .members = {"alone"}});
      if (!group.ok()) return group.status();
      const absl::Status summed = (*group)->AllReduce(at::full({3}, 2.0f));
      if (!summed.ok()) return summed;
    }
    return absl::OkStatus();
  };
  for (const absl::Status& status : OnThreads(kThreads, body)) EXPECT_THAT(status, IsOk());
}

}  // namespace
}  // namespace tandem::comm
