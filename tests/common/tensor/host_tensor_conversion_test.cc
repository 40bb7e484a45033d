#include "common/tensor/host_tensor_conversion.h"

#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "common/tensor/torch_status.h"
#include "tests/support/status_matchers.h"

namespace tandem {
namespace {

using testing::FailsWith;
using testing::IsOk;

HostTensor FloatsAt(std::shared_ptr<std::vector<std::byte>> memory, size_t offset) {
  const float values[] = {1.5f, -2.0f};
  std::memcpy(memory->data() + offset, values, sizeof(values));
  return {.spec = {"w", DType::kF32, {2, 1}},
          .bytes = {memory->data() + offset, sizeof(values)},
          .owner = memory};
}

TEST(HostTensorConversionTest, ViewSharesAlignedBytesAndKeepsTheirOwnerAlive) {
  auto memory = std::make_shared<std::vector<std::byte>>(16);
  const std::weak_ptr<std::vector<std::byte>> watched = memory;
  absl::StatusOr<at::Tensor> viewed = ViewAsTensor(FloatsAt(memory, 4));
  ASSERT_THAT(viewed, IsOk());
  at::Tensor view = *std::move(viewed);
  EXPECT_EQ(view.const_data_ptr(), memory->data() + 4);
  memory.reset();
  EXPECT_FALSE(watched.expired());
  EXPECT_EQ(view.const_data_ptr<float>()[1], -2.0f);
  view.reset();
  EXPECT_TRUE(watched.expired());
}

TEST(HostTensorConversionTest, MisalignedBytesAreCopied) {
  auto memory = std::make_shared<std::vector<std::byte>>(16);
  const absl::StatusOr<at::Tensor> view = ViewAsTensor(FloatsAt(memory, 3));
  ASSERT_THAT(view, IsOk());
  EXPECT_EQ(view->sizes(), (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(view->const_data_ptr<float>()[0], 1.5f);
  EXPECT_EQ(view->const_data_ptr<float>()[1], -2.0f);
}

TEST(HostTensorConversionTest, BytesThatDoNotFillTheShapeAreRefused) {
  HostTensor tensor = FloatsAt(std::make_shared<std::vector<std::byte>>(16), 0);
  tensor.spec.shape = {3};
  EXPECT_THAT(ViewAsTensor(tensor),
              FailsWith(absl::StatusCode::kInvalidArgument, "has 8 bytes, want 12"));
}

TEST(HostTensorConversionTest, TensorBecomesBytesInRowOrder) {
  const at::Tensor transposed = at::tensor({1.0f, 2.0f, 3.0f, 4.0f}).view({2, 2}).t();
  const absl::StatusOr<HostTensor> host = ToHostTensor("x", transposed);
  ASSERT_THAT(host, IsOk());
  EXPECT_EQ(host->spec, (TensorSpec{"x", DType::kF32, {2, 2}}));
  float values[4];
  std::memcpy(values, host->bytes.data(), sizeof(values));
  EXPECT_EQ(values[1], 3.0f);
  EXPECT_EQ(values[2], 2.0f);
}

TEST(CatchTorchTest, AnErrorOfLibTorchBecomesAStatusThatNamesTheWork) {
  const absl::StatusOr<int> failed =
      CatchTorch("adding", []() -> int { TORCH_CHECK(false, "shapes differ"); });
  EXPECT_THAT(failed, FailsWith(absl::StatusCode::kInternal, "adding: shapes differ"));
  EXPECT_THAT(CatchTorch("void", [] {}), IsOk());
  EXPECT_EQ(*CatchTorch("value", [] { return 3; }), 3);
}

}  // namespace
}  // namespace tandem
