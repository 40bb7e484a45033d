// Sizes and distances of adapters against the differences themselves.
#include "common/lora/lora_change.h"

#include <gtest/gtest.h>

#include <vector>

namespace tandem {
namespace {

TEST(ChangeProductTest, IsTheInnerProductOfWhatTwoAdaptersAdd) {
  // B A = [[1, 0, 2], [-2, 0, -4]], half of it.
  const std::vector<float> a = {1, 0, 2}, b = {1, -2};
  const LoraFactors one = {a.data(), b.data(), 1, 3, 0.5f};
  EXPECT_DOUBLE_EQ(ChangeProduct(one, one, 2), 0.25 + 1 + 1 + 4);
  // Rank 2, counted once: B A = [[1, 2, 3], [0, 1, 0]] by A = [[1, 2, 3], [0, 1, 0]] and B = identity.
  const std::vector<float> other_a = {1, 2, 3, 0, 1, 0}, other_b = {1, 0, 0, 1};
  const LoraFactors other = {other_a.data(), other_b.data(), 2, 3, 1};
  EXPECT_DOUBLE_EQ(ChangeProduct(other, other, 2), 1 + 4 + 9 + 1);
  EXPECT_DOUBLE_EQ(ChangeProduct(one, other, 2), 0.5 * (1 * 1 + 2 * 3));
  EXPECT_DOUBLE_EQ(ChangeProduct(other, one, 2), 3.5);
}

}  // namespace
}  // namespace tandem
