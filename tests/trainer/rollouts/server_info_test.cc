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
  return CheckServerNumerics(info, {Numerics::kExact, ComputeDType::kBf16, "avx2"});
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
    EXPECT_THAT(CheckServerNumerics(Info("fast", "fp32", "scalar"),
                                    {numerics, ComputeDType::kBf16, "avx512"}),
                IsOk());
  }
}

TEST(CheckServerNumerics, ExactWantsWeightsOfTheSameFormatsOnBothSides) {
  rollout::v1::GetInfoResponse info = Info("exact", "bf16", "avx2");
  info.set_weights("layers 0-1: int8; head: int8; activations: auto");
  EXPECT_THAT(Check(info), FailsWith(kInvalid, "set trainer.fake_quantise to what server.engine"));
  SideNumerics trainer = {Numerics::kExact, ComputeDType::kBf16, "avx2", info.weights()};
  EXPECT_THAT(CheckServerNumerics(info, trainer), IsOk());
  info.set_weights("dtype");
  EXPECT_THAT(CheckServerNumerics(info, trainer), FailsWith(kInvalid, "its weights are 'dtype'"));
}

TEST(CheckServerNumerics, ATrainerThatFakesQuantisationWantsAServerThatQuantisesSo) {
  rollout::v1::GetInfoResponse info = Info("fast", "bf16", "avx2");
  const SideNumerics trainer = {Numerics::kFast, ComputeDType::kFp32, "avx2",
                                "layers 0-1: int4_group of 32; head: int8; activations: auto"};
  EXPECT_THAT(CheckServerNumerics(info, trainer), FailsWith(kInvalid, "its weights are 'dtype'"));
  info.set_weights(trainer.weights);
  EXPECT_THAT(CheckServerNumerics(info, trainer), IsOk());
}

TEST(CheckServerNumerics, AServerMayQuantiseWhatTheTrainerDoesNot) {
  rollout::v1::GetInfoResponse info = Info("fast", "bf16", "avx2");
  info.set_weights("layers 0-1: int8; head: int8; activations: auto");
  EXPECT_THAT(CheckServerNumerics(info, {Numerics::kFast, ComputeDType::kBf16, "avx2"}), IsOk());
}

}  // namespace
}  // namespace tandem::trainer
