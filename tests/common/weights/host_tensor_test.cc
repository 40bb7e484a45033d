#include "common/weights/host_tensor.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace tandem {
namespace {

using testing::FailsWith;

TEST(HostTensor, CountsElementsAndBytes) {
  const TensorSpec spec{"w", DType::kBF16, {3, 4}};
  EXPECT_EQ(spec.num_elements(), 12);
  EXPECT_EQ(spec.num_bytes(), 24);
  EXPECT_EQ((TensorSpec{"s", DType::kF64, {}}.num_bytes()), 8);  // a scalar
  EXPECT_EQ((TensorSpec{"e", DType::kF32, {5, 0}}.num_bytes()), 0);
}

TEST(HostTensor, PrintsNameDtypeAndShape) {
  EXPECT_EQ((TensorSpec{"model.norm.weight", DType::kF32, {576}}.ToString()),
            "model.norm.weight F32 [576]");
  EXPECT_EQ((TensorSpec{"w", DType::kBF16, {2, 3}}.ToString()), "w BF16 [2, 3]");
}

TEST(HostTensor, SpellsDtypesAsSafetensorsDoes) {
  const std::vector<std::pair<std::string, int64_t>> expected = {
      {"F32", 4}, {"BF16", 2}, {"F16", 2}, {"F64", 8}, {"I64", 8},
      {"I32", 4}, {"I16", 2},  {"I8", 1},  {"U8", 1},  {"BOOL", 1}};
  for (const auto& [name, bytes] : expected) {
    const absl::StatusOr<DType> dtype = DTypeFromName(name);
    ASSERT_TRUE(dtype.ok()) << name;
    EXPECT_EQ(DTypeName(*dtype), name);
    EXPECT_EQ(DTypeBytes(*dtype), bytes) << name;
  }
}

TEST(HostTensor, RefusesUnknownDtypesWithTheKnownOnes) {
  EXPECT_THAT(DTypeFromName("F8_E4M3"), FailsWith(absl::StatusCode::kInvalidArgument,
                                                  "'F8_E4M3' is not supported; one of F32"));
}

}  // namespace
}  // namespace tandem
