#include "trainer/rollouts/server_info.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace tandem::trainer {
namespace {

using testing::FailsWith;
using testing::IsOk;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

rollout::v1::GetInfoResponse Info(const char* numerics, const char* dtype, const char* set) {
  rollout::v1::GetInfoResponse info;
  info.set_numerics(numerics);
  info.set_dtype(dtype);
  info.set_instruction_set(set);
  return info;
}

absl::Status Check(const rollout::v1::GetInfoResponse& info) {
  return CheckServerNumerics(info, Numerics::kExact, ComputeDType::kBf16, "avx2");
}

TEST(CheckServerNumerics, ExactWantsTheSamePromiseDtypeAndInstructions) {
  EXPECT_THAT(Check(Info("exact", "bf16", "avx2")), IsOk());
  EXPECT_THAT(Check(Info("invariant", "bf16", "avx2")),
              FailsWith(kInvalid, "set server.engine.numerics=exact"));
  EXPECT_THAT(Check(Info("exact", "fp32", "avx2")), FailsWith(kInvalid, "it computes in fp32"));
  EXPECT_THAT(Check(Info("exact", "bf16", "avx512")),
              FailsWith(kInvalid, "TANDEM_INSTRUCTION_SET"));
  EXPECT_THAT(Check(Info("exact", "bf16", "cuda NVIDIA H100")),
              FailsWith(kInvalid, "trainer.device to the same kind"));
}

TEST(CheckServerNumerics, TheOtherModesTakeAnyServer) {
  for (const Numerics numerics : {Numerics::kFast, Numerics::kInvariant}) {
    EXPECT_THAT(CheckServerNumerics(Info("fast", "fp32", "scalar"), numerics, ComputeDType::kBf16,
                                    "avx512"),
                IsOk());
  }
}

}  // namespace
}  // namespace tandem::trainer
