#include "common/offpolicy/policy_objective.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace tandem::offpolicy {
namespace {

// Two completions with the same advantage, of 1 and 10 tokens.
class LossScalesTest : public ::testing::Test {
 protected:
  LossScalesTest() : counted_(11, 1), completion_(11, 1) { completion_[0] = 0; }
  LossScales Compute(const ObjectiveOptions& options) const {
    return ComputeLossScales(counted_, completion_, 2, options);
  }
  std::vector<uint8_t> counted_;
  std::vector<int64_t> completion_;
};

TEST_F(LossScalesTest, Bug16TenPlacesOfPaddingChangeNothing) {
  for (const Normalisation normalisation : {Normalisation::kToken, Normalisation::kSequence}) {
    const LossScales bare = Compute({.normalisation = normalisation});
    std::vector<uint8_t> counted = counted_;
    std::vector<int64_t> completion = completion_;
    counted.resize(21, 0);
    completion.resize(21, 1);
    const LossScales with =
        ComputeLossScales(counted, completion, 2, {.normalisation = normalisation});
    EXPECT_EQ(with.denominator, bare.denominator);
    for (size_t t = 0; t < 21; ++t) EXPECT_EQ(with.scale[t], t < 11 ? bare.scale[t] : 0) << t;
  }
}

TEST_F(LossScalesTest, Bug17TokenNormalisationCountsEachTokenAlike) {
  const LossScales s = Compute({.normalisation = Normalisation::kToken});
  EXPECT_EQ(s.scale, std::vector<double>(11, 1));
  EXPECT_EQ(s.denominator, 11);
}

TEST_F(LossScalesTest, Bug17SequenceNormalisationCountsEachCompletionAlike) {
  const LossScales s = Compute({.normalisation = Normalisation::kSequence});
  EXPECT_EQ(s.scale[0], 1);
  EXPECT_EQ(s.scale[1], 0.1);
  EXPECT_EQ(s.denominator, 2);
}

TEST_F(LossScalesTest, Bug17ConstantNormalisationHasNoLengthInIt) {
  const LossScales s = Compute({.normalisation = Normalisation::kConstant, .constant_length = 16});
  EXPECT_EQ(s.scale, std::vector<double>(11, 1));
  EXPECT_EQ(s.denominator, 32);
}

TEST_F(LossScalesTest, Bug21TokensThatDoNotCountLeaveTheDivisor) {
  std::fill(counted_.begin() + 6, counted_.end(), 0);
  const LossScales token = Compute({});
  EXPECT_EQ(token.denominator, 6);
  EXPECT_EQ(token.scale[7], 0);
  EXPECT_EQ(Compute({.normalisation = Normalisation::kSequence}).scale[1], 0.2);
}

TEST_F(LossScalesTest, NothingCountedIsADenominatorOfZero) {
  std::ranges::fill(counted_, 0);
  EXPECT_EQ(Compute({}).denominator, 0);
  EXPECT_EQ(Compute({.normalisation = Normalisation::kSequence}).denominator, 0);
}

}  // namespace
}  // namespace tandem::offpolicy
