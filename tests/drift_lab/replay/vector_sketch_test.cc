#include "drift_lab/replay/vector_sketch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace tandem::drift {
namespace {

std::vector<float> Sketch(const VectorSketch& sketch, const std::vector<float>& vector) {
  std::vector<float> result(static_cast<size_t>(sketch.width()));
  sketch.Add(0, vector, result);
  return result;
}

double Dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

TEST(VectorSketchTest, AVectorThatFitsKeepsItsProductsExactly) {
  const VectorSketch sketch(4, 100, 1);
  EXPECT_EQ(sketch.width(), 4);
  EXPECT_TRUE(sketch.is_exact());
  EXPECT_EQ(sketch.relative_error(), 0);
  const std::vector<float> a = {1, -2, 3, 4}, b = {5, 6, 7, -8};
  EXPECT_EQ(Dot(Sketch(sketch, a), Sketch(sketch, b)), 5 - 12 + 21 - 32);
  EXPECT_EQ(Dot(Sketch(sketch, a), Sketch(sketch, a)), 30);
}

TEST(VectorSketchTest, PartsAddUpToTheWhole) {
  std::vector<float> vector(1000);
  for (size_t i = 0; i < vector.size(); ++i) vector[i] = static_cast<float>(i % 17) - 8;
  const VectorSketch sketch(1000, 64, 3);
  std::vector<float> in_parts(64);
  const std::span<const float> all = vector;
  sketch.Add(0, all.first(7), in_parts);
  sketch.Add(7, all.subspan(7, 500), in_parts);
  sketch.Add(507, all.subspan(507), in_parts);
  EXPECT_EQ(in_parts, Sketch(sketch, vector));
}

// Over seeds: unbiased, and as wrong as it says. Both kinds of vectors that a hash could be bad
// for: one whose blocks are all alike, and one with a few large elements.
TEST(VectorSketchTest, ProductsAreUnbiasedWithTheStatedError) {
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  std::vector<float> alike(20000), spiky(20000), mixed(20000);
  for (size_t i = 0; i < alike.size(); ++i) {
    alike[i] = static_cast<float>(i % 256 < 40);
    spiky[i] = i % 1000 == 0 ? 10 : 0.1f * normal(random);
    mixed[i] = alike[i] + spiky[i];
  }
  constexpr int kSeeds = 400;
  for (const auto& [a, b] :
       {std::pair{alike, alike}, {spiky, spiky}, {alike, mixed}, {alike, spiky}}) {
    const double product = Dot(a, b), scale = std::sqrt(Dot(a, a) * Dot(b, b));
    double sum = 0, squares = 0;
    for (int seed = 0; seed < kSeeds; ++seed) {
      const VectorSketch sketch(20000, 256, static_cast<uint64_t>(seed));
      EXPECT_FALSE(sketch.is_exact());
      const double error = (Dot(Sketch(sketch, a), Sketch(sketch, b)) - product) / scale;
      sum += error;
      squares += error * error;
    }
    const double cosine = product / scale, expected = std::sqrt((1 + cosine * cosine) / 256);
    EXPECT_NEAR(sum / kSeeds, 0, 4 * expected / std::sqrt(kSeeds));
    EXPECT_LT(std::sqrt(squares / kSeeds), 1.15 * expected);
  }
  EXPECT_NEAR(VectorSketch(20000, 256, 1).relative_error(), std::sqrt(2.0 / 256), 1e-15);
}

}  // namespace
}  // namespace tandem::drift
