#include "rollout_server/engine/kv_capacity.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace tandem::rollout {
namespace {

using tandem::testing::FailsWith;
using tandem::testing::IsOk;

constexpr int64_t kMib = int64_t{1} << 20;

TEST(KvMemory, PassesWhatFitsAndWhereNothingIsKnown) {
  const KvMemory wanted = {
      .capacity_tokens = 1024, .cache_bytes = 64 * kMib, .weight_bytes = 36 * kMib};
  EXPECT_THAT(CheckKvMemory(wanted, 100 * kMib), IsOk());
  EXPECT_THAT(CheckKvMemory(wanted, std::nullopt), IsOk());
}

TEST(KvMemory, NamesTheSizesAndTheCapacityThatWouldFit) {
  const KvMemory wanted = {
      .capacity_tokens = 1024, .cache_bytes = 64 * kMib, .weight_bytes = 36 * kMib};
  // 80 MiB less a twentieth less the weights are 40 MiB: 640 tokens.
  EXPECT_THAT(CheckKvMemory(wanted, 80 * kMib),
              FailsWith(absl::StatusCode::kResourceExhausted,
                        "a KV cache of 1024 tokens takes 64.0 MiB, the weights 36.0 MiB, and this "
                        "process can still take 80.0 MiB: lower engine.kv_capacity_tokens to at "
                        "most 640"));
}

// So the first push does not meet the out-of-memory killer in the middle of a run.
TEST(KvMemory, APushIsCountedBesideTheWeightsThatServe) {
  KvMemory wanted = {.capacity_tokens = 1024,
                     .cache_bytes = 64 * kMib,
                     .weight_bytes = 10 * kMib,
                     .push_bytes = 20 * kMib};
  EXPECT_THAT(CheckKvMemory(wanted, 94 * kMib), IsOk());
  // 80 MiB less a twentieth less 30 MiB are 46 MiB: 736 tokens.
  EXPECT_THAT(CheckKvMemory(wanted, 80 * kMib),
              FailsWith(absl::StatusCode::kResourceExhausted,
                        "tokens takes 64.0 MiB, the weights 10.0 MiB, a push of weights 20.0 MiB, "
                        "and this process can still take 80.0 MiB: lower "
                        "engine.kv_capacity_tokens to at most 736"));
  // A device has the cache and the weights.
  EXPECT_THAT(CheckKvMemory({.push_bytes = 20 * kMib}, 19 * kMib),
              FailsWith(absl::StatusCode::kResourceExhausted,
                        "a push of weights 20.0 MiB, and this process can still take 19.0 MiB: "
                        "the model needs a machine or a memory limit that is larger"));
}

TEST(KvMemory, SaysSoWhereNoCapacityWouldFit) {
  EXPECT_THAT(
      CheckKvMemory({.capacity_tokens = 1024, .cache_bytes = kMib, .weight_bytes = 36 * kMib},
                    30 * kMib),
      FailsWith(absl::StatusCode::kResourceExhausted,
                "a machine or a memory limit that is larger"));
}

}  // namespace
}  // namespace tandem::rollout
