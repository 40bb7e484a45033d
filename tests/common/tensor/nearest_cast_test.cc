// Compared with LibTorch's own conversions.
#include "common/tensor/nearest_cast.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "common/tensor/host_tensor_conversion.h"
#include "tests/support/status_matchers.h"

namespace tandem {
namespace {

using testing::FailsWith;
using testing::IsOk;

void ExpectLikeTorch(const at::Tensor& values, DType dtype) {
  const auto tensor = ToHostTensor("w", values);
  ASSERT_THAT(tensor, IsOk());
  const auto cast = CastNearest(*tensor, dtype);
  ASSERT_THAT(cast, IsOk());
  EXPECT_EQ(cast->spec.dtype, dtype);
  EXPECT_EQ(cast->spec.shape, tensor->spec.shape);
  const at::Tensor want = values.to(*ToScalarType(dtype)), got = *ViewAsTensor(*cast);
  EXPECT_TRUE(at::equal(want.isnan(), got.isnan()));
  EXPECT_TRUE(at::equal(want.nan_to_num(0, 1, -1), got.nan_to_num(0, 1, -1)));
}

TEST(NearestCastTest, EveryHalfPrecisionNumberIsTheOneOfLibTorch) {
  const at::Tensor bits = at::arange(0, 65536, at::kInt).to(at::kShort);
  ExpectLikeTorch(bits.view(at::kHalf), DType::kF32);
  ExpectLikeTorch(bits.view(at::kHalf), DType::kBF16);
  ExpectLikeTorch(bits.view(at::kBFloat16), DType::kF32);
}

TEST(NearestCastTest, FloatsAndDoublesRoundAsInLibTorch) {
  at::manual_seed(1);
  at::Tensor values =
      at::randn({100, 100}, at::kDouble) * at::exp(at::randn({100, 100}, at::kDouble) * 20);
  values[0][0] = std::numeric_limits<double>::infinity();
  values[0][1] = -0.0;
  values[0][2] = std::nan("");
  values[0][3] = 1 + 0x1p-8;  // half way between two bf16 numbers: to the even one
  values[0][4] = 1 + 3 * 0x1p-8;
  ExpectLikeTorch(values, DType::kF32);
  ExpectLikeTorch(values, DType::kBF16);
  ExpectLikeTorch(values.to(at::kFloat), DType::kBF16);
}

TEST(NearestCastTest, TheSameDtypeIsTheSameBytes) {
  const HostTensor tensor = *ToHostTensor("w", at::ones({3}));
  EXPECT_EQ(CastNearest(tensor, DType::kF32)->bytes.data(), tensor.bytes.data());
}

TEST(NearestCastTest, BytesMayLieAtAnyAddress) {
  const float values[] = {1.5f, -2.0f};
  auto memory = std::make_shared<std::vector<std::byte>>(16);
  std::memcpy(memory->data() + 3, values, sizeof(values));
  const auto cast = CastNearest(
      {{"w", DType::kF32, {2}}, {memory->data() + 3, sizeof(values)}, memory}, DType::kBF16);
  ASSERT_THAT(cast, IsOk());
  EXPECT_EQ(ViewAsTensor(*cast)->to(at::kFloat)[1].item<float>(), -2.0f);
}

TEST(NearestCastTest, NumbersThatAreNoFloatsAreRefused) {
  const HostTensor ids = *ToHostTensor("ids", at::ones({3}, at::kInt));
  EXPECT_THAT(CastNearest(ids, DType::kF32),
              FailsWith(absl::StatusCode::kInvalidArgument, "ids I32 [3]: want a float dtype"));
  const HostTensor floats = *ToHostTensor("w", at::ones({3}));
  EXPECT_THAT(CastNearest(floats, DType::kI32),
              FailsWith(absl::StatusCode::kInvalidArgument, "want F32 or BF16"));
}

}  // namespace
}  // namespace tandem
