#include "common/offpolicy/correction.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "tests/support/status_matchers.h"

namespace tandem::offpolicy {
namespace {

using ::tandem::testing::FailsWith;
using Kind = CorrectionKind;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Probabilities, not logs: a reader can check each by eye.
struct Token {
  double proximal, behaviour;
  int64_t completion = 0;
  double advantage = -1;
  bool trained = true;
};

Correction Compute(const std::vector<Token>& tokens, const CorrectionOptions& options = {}) {
  std::vector<double> proximal, behaviour, advantages;
  std::vector<uint8_t> mask;
  std::vector<int64_t> completion;
  for (const Token& token : tokens) {
    proximal.push_back(std::log(token.proximal));
    behaviour.push_back(std::log(token.behaviour));
    advantages.push_back(token.advantage);
    mask.push_back(token.trained);
    completion.push_back(token.completion);
  }
  return ComputeCorrection({.proximal_logprobs = proximal,
                            .behaviour_logprobs = behaviour,
                            .mask = mask,
                            .completion = completion,
                            .advantages = advantages},
                           options)
      .value();
}

void ExpectWeights(const Correction& correction, const std::vector<double>& want) {
  ASSERT_EQ(correction.weight.size(), want.size());
  for (size_t t = 0; t < want.size(); ++t) {
    EXPECT_NEAR(correction.weight[t], want[t], 1e-12) << "token " << t;
    if (want[t] == 0) {
      EXPECT_FALSE(correction.kept[t]) << "token " << t;
    }
  }
}

// w = 4 and 1/2: product 2, geometric mean sqrt 2.
std::vector<Token> FourAndAHalf() { return {{0.4, 0.1}, {0.1, 0.2}}; }

struct KindCase {
  std::string name;
  CorrectionOptions options;
  std::vector<double> want;
  int64_t want_capped, want_masked;
};

// GoogleTest would otherwise print bytes of memory as the names of test cases.
void PrintTo(const KindCase& c, std::ostream* out) { *out << c.name; }

class CorrectionKindTest : public ::testing::TestWithParam<KindCase> {};

TEST_P(CorrectionKindTest, WeighsACompletionOfTwoTokens) {
  const KindCase& c = GetParam();
  const Correction correction = Compute(FourAndAHalf(), c.options);
  ExpectWeights(correction, c.want);
  EXPECT_EQ(correction.num_capped, c.want_capped);
  EXPECT_EQ(correction.num_masked, c.want_masked);
  EXPECT_EQ(correction.num_rejected, c.want_masked);
}

// clang-format off
INSTANTIATE_TEST_SUITE_P(
    Table, CorrectionKindTest,
    ::testing::Values(
        KindCase{"Off",              {.kind = Kind::kOff}, {1, 1}, 0, 0},
        KindCase{"TokenTis",         {.kind = Kind::kTokenTis, .max_weight = 2}, {2, 0.5}, 1, 0},
        KindCase{"TokenMask",        {.kind = Kind::kTokenMask, .min_weight = 0.6, .max_weight = 5}, {4, 0}, 0, 1},
        KindCase{"TokenMaskAbove",   {.kind = Kind::kTokenMask, .min_weight = 0.4, .max_weight = 3}, {0, 0.5}, 0, 1},
        KindCase{"TokenClip",        {.kind = Kind::kTokenClip, .min_weight = 0.6, .max_weight = 3}, {3, 0.6}, 2, 0},
        KindCase{"SequenceTis",      {.kind = Kind::kSequenceTis, .max_weight = 3}, {2, 2}, 0, 0},
        KindCase{"SequenceTisAbove", {.kind = Kind::kSequenceTis, .max_weight = 1.5}, {1.5, 1.5}, 2, 0},
        KindCase{"SequenceMask",     {.kind = Kind::kSequenceMask, .min_weight = 0.5, .max_weight = 3}, {2, 2}, 0, 0},
        KindCase{"SequenceMaskOut",  {.kind = Kind::kSequenceMask, .min_weight = 0.5, .max_weight = 1.5}, {0, 0}, 0, 2},
        KindCase{"SequenceClip",     {.kind = Kind::kSequenceClip, .min_weight = 0.5, .max_weight = 1.5}, {1.5, 1.5}, 2, 0},
        KindCase{"GeometricTis",     {.kind = Kind::kGeometricTis, .max_weight = 2}, {std::sqrt(2), std::sqrt(2)}, 0, 0},
        KindCase{"GeometricMask",    {.kind = Kind::kGeometricMask, .max_weight = 1.4}, {0, 0}, 0, 2},
        KindCase{"GeometricMaskIn",  {.kind = Kind::kGeometricMask, .max_weight = 1.5}, {std::sqrt(2), std::sqrt(2)}, 0, 0},
        KindCase{"GeometricClip",    {.kind = Kind::kGeometricClip, .max_weight = 1.2}, {1.2, 1.2}, 2, 0}),
    [](const auto& info) { return info.param.name; });
// clang-format on

TEST(CorrectionTest, ClipsASequenceFromBelowToo) {
  ExpectWeights(Compute({{0.1, 0.2}, {0.1, 0.2}}, {.kind = Kind::kSequenceClip, .min_weight = 0.5}),
                {0.5, 0.5});
}

TEST(CorrectionTest, APromptTokenHasNoPartWhateverItsNumbersAre) {
  std::vector<Token> tokens = FourAndAHalf();
  tokens.push_back({.proximal = kNan, .behaviour = 0, .completion = -1, .trained = false});
  const Correction c = Compute(tokens, {.kind = Kind::kSequenceTis, .max_weight = 3});
  ExpectWeights(c, {2, 2, 0});
  EXPECT_EQ(c.num_rejected, 0);
}

TEST(CorrectionTest, Bug21DroppedTokensAreCountedAndLeaveTheKeptOnes) {
  const Correction c = Compute({{0.3, kNan}, {0, 0.3}, {0.4, 0.2}, {0.3, 0.3, 1}});
  EXPECT_EQ(c.num_nonfinite, 2);
  EXPECT_EQ(c.num_rejected, 2);
  ExpectWeights(c, {0, 0, 2, 1});
  for (const double centre : c.centre_logprobs) EXPECT_TRUE(std::isfinite(centre));
}

TEST(CorrectionTest, ATokenWithoutALogprobLeavesTheProductOfItsCompletion) {
  ExpectWeights(Compute({{0.4, 0.1}, {0.1, 0}}, {.kind = Kind::kSequenceTis, .max_weight = 9}),
                {4, 0});
  ExpectWeights(Compute({{0.4, 0.1}, {0.1, 0}}, {.kind = Kind::kGeometricTis, .max_weight = 9}),
                {4, 0});
}

TEST(CorrectionTest, WhenEveryTokenIsRefusedAllWeightsAreZero) {
  const Correction c = Compute(
      {{0.4, 0.1}, {0, 0.1}}, {.kind = Kind::kTokenMask, .max_weight = 2, .batch_normalise = true});
  ExpectWeights(c, {0, 0});
  EXPECT_EQ(c.num_rejected, 2);
  EXPECT_EQ(c.num_weights, 0);
}

TEST(CorrectionTest, Bug26BypassCentresOnTheBehaviourPolicyAndWeighsNothing) {
  const Correction c = Compute(FourAndAHalf(), {.mode = CorrectionMode::kBypass});
  ExpectWeights(c, {1, 1});
  EXPECT_EQ(c.centre_logprobs[0], std::log(0.1));
  EXPECT_EQ(c.raw_weight[0], 1);
}

TEST(CorrectionTest, BypassReadsTheProximalPolicyOnlyForAFilter) {
  const std::vector<Token> tokens = {{0.4, 0.1}, {kNan, 0.2}};
  ExpectWeights(Compute(tokens, {.mode = CorrectionMode::kBypass}), {1, 1});
  const Correction c = Compute(tokens, {.mode = CorrectionMode::kBypass, .geometric_max = 5});
  ExpectWeights(c, {1, 0});
  EXPECT_EQ(c.num_nonfinite, 1);
  EXPECT_EQ(c.centre_logprobs[0], std::log(0.1)) << "the centre is still the behaviour policy";
  ExpectWeights(Compute(tokens, {.mode = CorrectionMode::kBypass, .geometric_max = 3}), {0, 0});
}

TEST(CorrectionTest, MeasureOnlyWeighsAndRefusesNothingAndKeepsTheProximalCentre) {
  const Correction c =
      Compute(FourAndAHalf(), {.mode = CorrectionMode::kMeasureOnly, .veto_threshold = 0.9});
  ExpectWeights(c, {1, 1});
  EXPECT_EQ(c.centre_logprobs[0], std::log(0.4));
  EXPECT_NEAR(c.raw_weight[0], 4, 1e-12);
}

TEST(CorrectionTest, Bug40TheExponentIsClampedAtTwenty) {
  const std::vector<Token> tokens = {{1, std::exp(-50)}, {std::exp(-60), 0.5}};
  const Correction c = Compute(tokens, {.max_weight = 1e12});
  EXPECT_NEAR(c.weight[0], std::exp(20), 1e-3);
  EXPECT_NEAR(c.weight[1], std::exp(-20), 1e-12);
  const Correction whole =
      Compute({tokens[0], tokens[0]}, {.kind = Kind::kSequenceTis, .max_weight = 1e12});
  EXPECT_NEAR(whole.weight[0], std::exp(20), 1e-3) << "the sum is clamped, not its parts";
}

// Completion 0 has w = 4 and 1/2; completion 1 has one token with w = 1. Filters reject
// completions.
Correction Filter(CorrectionOptions options) {
  std::vector<Token> tokens = FourAndAHalf();
  tokens.push_back({0.3, 0.3, 1});
  options.kind = Kind::kOff;
  return Compute(tokens, options);
}

struct FilterCase {
  std::string name;
  CorrectionOptions keeps, refuses;
};

void PrintTo(const FilterCase& c, std::ostream* out) { *out << c.name; }

class CompletionFilterTest : public ::testing::TestWithParam<FilterCase> {};

TEST_P(CompletionFilterTest, RefusesTheWholeCompletionAndNoOther) {
  ExpectWeights(Filter(GetParam().keeps), {1, 1, 1});
  const Correction c = Filter(GetParam().refuses);
  ExpectWeights(c, {0, 0, 1});
  EXPECT_EQ(c.num_rejected, 2);
  EXPECT_EQ(c.num_masked, 0);
}

// k3 of w = 4: 4 - 1 - log 4 = 1.614; of 1/2: 1/2 - 1 + log 2 = 0.193; mean 0.903.
// clang-format off
INSTANTIATE_TEST_SUITE_P(
    Table, CompletionFilterTest,
    ::testing::Values(
        FilterCase{"Veto",         {.veto_threshold = 0.4},  {.veto_threshold = 0.6}},
        FilterCase{"GeometricMax", {.geometric_max = 1.42},  {.geometric_max = 1.41}},
        FilterCase{"K3Mean",       {.k3_mean_max = 0.91},    {.k3_mean_max = 0.90}},
        FilterCase{"K3OfAnyToken", {.k3_token_max = 1.62},   {.k3_token_max = 1.61}},
        // abs(0.3466 + 0.005) against z 0.1 / sqrt 2 = 0.0707 z
        FilterCase{"GeometricZ",   {.geometric_z = 4.98, .geometric_noise = 0.1}, {.geometric_z = 4.96, .geometric_noise = 0.1}}),
    [](const auto& info) { return info.param.name; });
// clang-format on

TEST(CorrectionTest, TheGeometricGateIsOpenOnTheSideThatIsOff) {
  const std::vector<Token> low = {{0.1, 0.2}};  // w = 1/2
  CorrectionOptions options = {.kind = Kind::kOff, .geometric_max = 1.1};
  ExpectWeights(Compute(low, options), {1});
  options.geometric_min = 0.9;
  ExpectWeights(Compute(low, options), {0});
}

// The bound on the mean log ratio falls with the root of the length: z s / sqrt(T) = 3 * 0.1 /
// sqrt(T), 0.3 for one token, 0.15 for four. A mean of log 1.2 + s^2/2 = 0.187 passes the first and
// not the second.
TEST(CorrectionTest, TheGeometricFilterAllowsForLength) {
  const Correction c =
      Compute({{0.6, 0.5}, {0.6, 0.5, 1}, {0.6, 0.5, 1}, {0.6, 0.5, 1}, {0.6, 0.5, 1}},
              {.kind = Kind::kOff, .geometric_z = 3, .geometric_noise = 0.1});
  ExpectWeights(c, {1, 0, 0, 0, 0});
}

TEST(CorrectionTest, NegativeOnlySparesTokensThatAreNotNegative) {
  const std::vector<Token> tokens = {
      {0.6, 0.1, 0, -1}, {0.6, 0.1, 1, 1}, {0.1, 0.5, 2, 0.5}, {0.1, 0.5, 3, 0}};
  const CorrectionOptions options = {
      .kind = Kind::kTokenMask, .min_weight = 0.5, .max_weight = 5, .negative_only = true};
  // w = 6 is spared but meets the ceiling; w = 0.2 is spared and kept.
  const Correction c = Compute(tokens, options);
  ExpectWeights(c, {0, 5, 0.2, 0.2});
  EXPECT_EQ(c.num_capped, 1);
  ExpectWeights(Compute({{0.1, 0.5, 0, -1}, {0.1, 0.5, 1, 1}},
                        {.kind = Kind::kOff, .geometric_min = 0.6065, .negative_only = true}),
                {0, 1});
}

TEST(CorrectionTest, NormalisesTokenWeightsByTheirMeanAfterTheirBounds) {
  const Correction c = Compute(FourAndAHalf(), {.batch_normalise = true});
  ExpectWeights(c, {2 / 1.25, 0.5 / 1.25});
  EXPECT_EQ(c.weight_sum, 2.5) << "the mean is known from before the division";
  EXPECT_EQ(c.num_weights, 2);
}

// Weights 2 (of two tokens) and 1/2 (of one): the mean over completions is 1.25, over tokens 1.5.
TEST(CorrectionTest, Bug34SequenceWeightsAreNormalisedOverCompletionsNotTokens) {
  std::vector<Token> tokens = FourAndAHalf();
  tokens.push_back({0.1, 0.2, 1});
  const Correction c =
      Compute(tokens, {.kind = Kind::kSequenceTis, .max_weight = 3, .batch_normalise = true});
  ExpectWeights(c, {1.6, 1.6, 0.4});
}

TEST(CorrectionTest, ABatchInPartsIsNormalisedLikeTheWhole) {
  const std::vector<Token> tokens = {{0.4, 0.1}, {0.1, 0.2, 1}, {0.3, 0.2, 1}};
  const Correction whole = Compute(tokens, {.batch_normalise = true});
  Correction first = Compute({tokens[0]}), second = Compute({tokens[1], tokens[2]});
  const double divisor = (first.weight_sum + second.weight_sum) /
                         static_cast<double>(first.num_weights + second.num_weights);
  DivideWeights(divisor, first);
  DivideWeights(divisor, second);
  ExpectWeights(whole, {first.weight[0], second.weight[0], second.weight[1]});
}

TEST(CorrectionTest, RefusesArraysThatDoNotRunInParallel) {
  const std::vector<double> three(3), two(2);
  const std::vector<uint8_t> mask(3, 1);
  const std::vector<int64_t> completion(3);
  EXPECT_THAT(
      ComputeCorrection({.proximal_logprobs = two,
                         .behaviour_logprobs = three,
                         .mask = mask,
                         .completion = completion},
                        {}),
      FailsWith(absl::StatusCode::kInvalidArgument, "proximal_logprobs has 2 elements and mask 3"));
  EXPECT_THAT(ComputeCorrection({.proximal_logprobs = three,
                                 .behaviour_logprobs = three,
                                 .mask = mask,
                                 .completion = completion},
                                {.veto_threshold = 0.5, .negative_only = true}),
              FailsWith(absl::StatusCode::kInvalidArgument, "advantages has 0 elements"));
}

TEST(CorrectionOptionsTest, RefusesWhatContradictsItselfAndSaysWhatToDo) {
  const auto refuses = [](const CorrectionOptions& options, const char* message) {
    EXPECT_THAT(CheckOptions(options), FailsWith(absl::StatusCode::kInvalidArgument, message));
  };
  refuses({.kind = Kind::kTokenTis, .min_weight = 0.5}, "take the mask or clip kind");
  refuses({.geometric_min = 1, .geometric_max = 0.9}, "every completion would be refused");
  refuses({.kind = Kind::kOff, .batch_normalise = true}, "batch_normalise needs weights");
  refuses({.mode = CorrectionMode::kBypass, .batch_normalise = true}, "mode decoupled");
  refuses({.negative_only = true}, "nothing to spare");
  EXPECT_TRUE(CheckOptions({.kind = Kind::kGeometricMask, .min_weight = 0.5}).ok());
  EXPECT_TRUE(CheckOptions({.veto_threshold = 1e-4, .negative_only = true}).ok());
}

}  // namespace
}  // namespace tandem::offpolicy
