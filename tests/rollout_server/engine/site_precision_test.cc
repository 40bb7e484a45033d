// Precision site by site: what each parameter rounds, and what it leaves alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/tensor/instruction_set.h"
#include "common/tensor/nearest_cast.h"
#include "tests/rollout_server/engine/engine_fixture.h"

namespace tandem::rollout {
namespace {

using tandem::testing::IsOk;

class SitePrecisionTest : public EngineFixture {
 protected:
  static SequenceScore Score(Engine& engine, const std::vector<int32_t>& ids,
                             const SitePrecision& precision, ScorePath path = ScorePath::kPrefill) {
    const auto scores = engine.Score({{ids}}, {.path = path, .arithmetic = {precision}});
    EXPECT_THAT(scores, IsOk());
    return scores.ok() ? (*scores)[0] : SequenceScore();
  }
};

// The bf16 engine is the fp32 engine at the cast weights with body and KV at 8 bits, to the last
// bit: with it the ablation can go from one to the other site by site. Processors with bf16
// instructions add pairs of products with one rounding, which no rounding of inputs reproduces.
TEST_F(SitePrecisionTest, EightBitsOfBodyAndKvAreTheBf16Engine) {
  EngineOptions options = Fp32();
  const auto fp32 = Make(options);
  options.dtype = ComputeDType::kBf16;
  const auto bf16 = Make(options);
  std::vector<HostTensor> widened;  // the same values
  for (const HostTensor& tensor : bf16->initial_tensors()) {
    auto wide = CastNearest(tensor, DType::kF32);
    ASSERT_THAT(wide, IsOk());
    widened.push_back(*std::move(wide));
  }
  auto cast = fp32->Stage(std::move(widened));
  ASSERT_THAT(cast, IsOk());
  fp32->Install(*std::move(cast), WeightVersion{1});
  for (const ScorePath path : {ScorePath::kPrefill, ScorePath::kDecode}) {
    const std::vector<int32_t> ids = Prompt(100, 4);
    const SequenceScore want = Score(*bf16, ids, {}, path);
    const SequenceScore rounded = Score(*fp32, ids, {.body_bits = 8, .kv_bits = 8}, path);
    const SequenceScore untouched = Score(*fp32, ids, {}, path);
    if (ActiveInstructionSet() == InstructionSet::kAvx512Bf16) {
      EXPECT_LT(LargestGap(rounded.logprobs, want.logprobs),
                0.2 * LargestGap(untouched.logprobs, want.logprobs));
    } else {
      EXPECT_EQ(rounded.logprobs, want.logprobs);
      EXPECT_EQ(rounded.entropies, want.entropies);
    }
    EXPECT_NE(untouched.logprobs, want.logprobs);
    // More bits than the dtype keeps change nothing.
    EXPECT_EQ(Score(*bf16, ids, {.body_bits = 8, .kv_bits = 8}, path).logprobs, want.logprobs);
  }
}

TEST_F(SitePrecisionTest, EachSiteMovesTheScoresTheMoreTheFewerBitsItKeeps) {
  const auto engine = Make(Fp32());
  const std::vector<int32_t> ids = Prompt(60, 2);
  const std::vector<float> exact = Score(*engine, ids, {}).logprobs;
  EXPECT_EQ(Score(*engine, ids, {24, 24, 24, 24}).logprobs, exact);
  for (int SitePrecision::*const site : {&SitePrecision::body_bits, &SitePrecision::head_bits,
                                         &SitePrecision::kv_bits, &SitePrecision::rotary_bits}) {
    double before = 0;
    for (const int bits : {18, 14, 10, 6}) {
      SitePrecision precision;
      precision.*site = bits;
      const double gap = LargestGap(Score(*engine, ids, precision).logprobs, exact);
      EXPECT_GT(gap, 3 * before) << bits << " bits";
      before = gap;
    }
  }
}

// Margins are differences of two logits: on the lattice when the logits are.
TEST_F(SitePrecisionTest, LogitsOfARoundedHeadAreOnALattice) {
  const auto engine = Make(Fp32());
  const int bits = 6;
  const SequenceScore score = Score(*engine, Prompt(60, 2), {.head_bits = bits});
  const SequenceScore exact = Score(*engine, Prompt(60, 2), {});
  int off = 0;
  for (size_t t = 1; t < score.margins.size(); ++t) {
    // The two largest logits of this model lie above 1, where neighbours are 2^(1 - bits) apart.
    const double spacing = std::ldexp(1.0, 1 - bits);
    const double steps = score.margins[t] / spacing;
    EXPECT_EQ(steps, std::round(steps)) << t;
    off += exact.margins[t] / spacing != std::round(exact.margins[t] / spacing);
  }
  EXPECT_GT(off, 50);
}

TEST_F(SitePrecisionTest, RotaryErrorGrowsWithPosition) {
  const auto engine = Make(Fp32());
  std::vector<double> near, far;
  for (int32_t salt = 0; salt < 6; ++salt) {
    const std::vector<int32_t> ids = Prompt(250, salt);
    const std::vector<float> exact = Score(*engine, ids, {}).logprobs;
    const std::vector<float> rounded = Score(*engine, ids, {.rotary_bits = 8}).logprobs;
    EXPECT_EQ(rounded[1], exact[1]);  // at position 0 the angle is 0
    for (size_t t = 2; t < ids.size(); ++t) {
      const double gap = std::abs(double{rounded[t]} - double{exact[t]});
      if (t < 50) near.push_back(gap);
      if (t >= 200) far.push_back(gap);
    }
  }
  const auto median = [](std::vector<double>& v) {
    std::nth_element(v.begin(), v.begin() + static_cast<int64_t>(v.size() / 2), v.end());
    return v[v.size() / 2];
  };
  EXPECT_GT(median(far), 3 * median(near));
}

// A token attends to itself through the cache too, so already the first position's value is
// rounded.
TEST_F(SitePrecisionTest, RoundedKvShowsFromTheFirstRowOn) {
  const auto engine = Make(Fp32());
  const std::vector<int32_t> ids = Prompt(20, 3);
  const std::vector<float> exact = Score(*engine, ids, {}).logprobs;
  const std::vector<float> rounded = Score(*engine, ids, {.kv_bits = 5}).logprobs;
  for (size_t t = 1; t < ids.size(); ++t) EXPECT_NE(rounded[t], exact[t]) << t;
}

}  // namespace
}  // namespace tandem::rollout
