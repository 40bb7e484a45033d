#include "common/tensor/linear.h"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tandem {
namespace {

at::Tensor Rows() { return at::tensor({1.0f, 2.0f, 3.0f, -1.0f, 0.5f, 4.0f}).view({2, 3}); }
at::Tensor Weight() { return at::tensor({1.0f, 0.0f, 2.0f, -1.0f, 1.0f, 1.0f}).view({2, 3}); }

std::vector<float> Values(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kFloat).contiguous();
  return {flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel()};
}

class LinearTest : public ::testing::TestWithParam<at::ScalarType> {};

// x W^T + b by hand: rows (1,2,3), (-1,.5,4); weights (1,0,2), (-1,1,1); bias (10,20).
const std::vector<float> kProduct = {7, 4, 7, 5.5};
const std::vector<float> kWithBias = {17, 24, 17, 25.5};

TEST_P(LinearTest, GivesTheProductWorkedOutByHand) {
  const at::ScalarType type = GetParam();
  EXPECT_EQ(Values(LinearForward(Rows().to(type), Weight().to(type), std::nullopt)), kProduct);
  EXPECT_EQ(Values(LinearForward(Rows().to(type), Weight().to(type),
                                 at::tensor({10.0f, 20.0f}).to(type))),
            kWithBias);
}

TEST_P(LinearTest, ManyRowsKeepTheDtypeAndTheValues) {
  const at::ScalarType type = GetParam();
  const at::Tensor rows = at::full({40, 64}, 0.5f).to(type);
  const at::Tensor weight = at::full({48, 64}, 0.25f).to(type);
  const at::Tensor result = LinearForward(rows, weight, std::nullopt);
  EXPECT_EQ(result.scalar_type(), type);
  EXPECT_EQ(Values(result), std::vector<float>(40 * 48, 8.0f));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, LinearTest, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(toString(info.param)); });

}  // namespace
}  // namespace tandem
