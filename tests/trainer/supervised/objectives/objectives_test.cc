// The objectives over given log-probs and scores: values worked out by hand, and slopes against
// central differences.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "tests/trainer/supervised/toy_examples.h"
#include "trainer/supervised/objectives/completion_objective.h"
#include "trainer/supervised/objectives/kto_objective.h"
#include "trainer/supervised/objectives/preference_objective.h"
#include "trainer/supervised/objectives/reward_objective.h"
#include "trainer/supervised/objectives/step_objective.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FirstNumbers;

double LogSigmoidOf(double x) { return -std::log1p(std::exp(-x)); }

// One example's numbers, flat: log-probs of its prompt (from the second token), then of its
// completions; or scores.
struct Numbers {
  std::vector<float> values, slopes;
  size_t prompt = 0;                // log-probs of the prompt
  std::vector<size_t> completions;  // log-probs of each
  bool heads = false;

  template <typename Parts, typename T>
  Parts Split(std::vector<T>& from) const {
    Parts parts;
    if (heads) {
      parts.heads = from;
      return parts;
    }
    parts.prompt_logprobs = {from.data(), prompt};
    size_t begin = prompt;
    for (const size_t count : completions) {
      parts.logprobs.push_back({from.data() + begin, count});
      begin += count;
    }
    return parts;
  }
};

double LossOf(const SupervisedObjective& objective, int64_t example, Numbers& numbers,
              bool with_slopes = false, std::vector<MetricSum>* metrics = nullptr) {
  std::vector<MetricSum> own(objective.MetricNames().size());
  numbers.slopes.assign(numbers.values.size(), 0);
  const auto scores = numbers.Split<ExampleScores>(numbers.values);
  auto slopes = numbers.Split<ExampleSlopes>(numbers.slopes);
  const double loss = objective.Loss(example, scores, with_slopes ? &slopes : nullptr, own);
  if (metrics != nullptr) *metrics = own;
  return loss;
}

void ExpectSlopesOfTheLoss(const SupervisedObjective& objective, int64_t example, Numbers numbers) {
  LossOf(objective, example, numbers, /*with_slopes=*/true);
  const std::vector<float> slopes = numbers.slopes;
  constexpr float kStep = 1e-3f;
  double largest = 0;
  for (size_t i = 0; i < numbers.values.size(); ++i) {
    Numbers above = numbers, below = numbers;
    above.values[i] += kStep;
    below.values[i] -= kStep;
    const double step = static_cast<double>(above.values[i]) - below.values[i];
    const double slope =
        (LossOf(objective, example, above) - LossOf(objective, example, below)) / step;
    EXPECT_NEAR(slopes[i], slope, 1e-5) << i;
    largest = std::max(largest, std::abs(slope));
  }
  EXPECT_GT(largest, 1e-3);
}

TEST(CompletionObjective, IsTheMeanOverTheTokensOfTheBatch) {
  CompletionObjective objective({{{1}, {2, 3}, true, 1}, {{1}, {4, 5}, true, 2}});
  objective.BeginBatch(FirstNumbers(2), 0);
  Numbers numbers{.values = {-1, -3}, .completions = {2}};
  EXPECT_NEAR(LossOf(objective, 0, numbers), 4.0 / 4, 1e-12);
  ExpectSlopesOfTheLoss(objective, 0, numbers);
}

// Two pairs; log-probs of the first: chosen -1 -2, rejected -4, reference -1.5 -2.5 and -3.
const std::vector<PreferencePair> kPairs = {
    {.prompt = {1, 2}, .chosen = {3, 4}, .rejected = {5}},
    {.prompt = {1, 2}, .chosen = {3}, .rejected = {5, 6}},
};
const std::vector<float> kReference = {-1.5f, -2.5f, -3, -1, -1, -2};
const Numbers kFirst = {.values = {-1, -2, -4}, .completions = {2, 1}};

TEST(PreferenceObjective, DpoComparesSumsWithTheReferenceAndAveragesOverPairs) {
  PreferenceObjective objective(kPairs, kReference,
                                {.kind = PreferenceLossKind::kDpo, .beta = 0.5});
  objective.BeginBatch(FirstNumbers(2), 0);
  Numbers numbers = kFirst;
  std::vector<MetricSum> metrics;
  // h = 0.5 ((-3 + 4) - (-4 + 3)) = 1
  EXPECT_NEAR(LossOf(objective, 0, numbers, false, &metrics), -LogSigmoidOf(1) / 2, 1e-12);
  const double expected[] = {0.5, -0.5, 1, 1, -3, -4, 1.5};
  for (size_t m = 0; m < metrics.size(); ++m) EXPECT_NEAR(metrics[m].mean(), expected[m], 1e-12);
  ExpectSlopesOfTheLoss(objective, 0, numbers);
}

TEST(PreferenceObjective, LdAlphaWeighsTheTokensBeyondTheShorterCompletionOnBothSides) {
  PreferenceObjective objective(kPairs, kReference,
                                {.kind = PreferenceLossKind::kDpo, .beta = 1, .ld_alpha = 0.5});
  objective.BeginBatch(FirstNumbers(1), 0);
  Numbers numbers = kFirst;
  // Chosen -1 - 2 / 2 = -2, reference -1.5 - 1.25 = -2.75: ratio 0.75; rejected ratio -1.
  EXPECT_NEAR(LossOf(objective, 0, numbers), -LogSigmoidOf(1.75), 1e-12);
  ExpectSlopesOfTheLoss(objective, 0, numbers);
}

TEST(PreferenceObjective, OrposNllReadsThePromptToo) {
  PreferenceObjective objective(kPairs, {}, {.kind = PreferenceLossKind::kOrpo, .beta = 0.1});
  EXPECT_TRUE(objective.reads_prompt());
  objective.BeginBatch(FirstNumbers(2), 0);  // 3 and 2 tokens
  Numbers numbers = {.values = {-0.5f, -1, -2, -4}, .prompt = 1, .completions = {2, 1}};
  std::vector<MetricSum> metrics;
  const double loss = LossOf(objective, 0, numbers, false, &metrics);
  EXPECT_NEAR(metrics[6].mean(), 3.5 / 3, 1e-12);
  EXPECT_NEAR(metrics[6].count, 3, 1e-12);
  // log odds of e^-1.5 and e^-4
  const auto log_odds = [](double x) { return x - std::log1p(-std::exp(x)); };
  const double odds_ratio = log_odds(-1.5) - log_odds(-4);
  EXPECT_NEAR(loss, (-0.1 * LogSigmoidOf(odds_ratio) + 3.5 / 2.5) / 2, 1e-12);
  ExpectSlopesOfTheLoss(objective, 0, numbers);
}

TEST(PreferenceObjective, EveryKindOfPairHasItsSlopes) {
  for (const PreferenceLossKind kind :
       {PreferenceLossKind::kDpoNorm, PreferenceLossKind::kDpoHinge, PreferenceLossKind::kIpo,
        PreferenceLossKind::kApoZero, PreferenceLossKind::kApoDown, PreferenceLossKind::kCpo,
        PreferenceLossKind::kSimpo}) {
    PreferenceObjective objective(kPairs, kReference, {.kind = kind, .beta = 0.3});
    objective.BeginBatch(FirstNumbers(2), 0);
    ExpectSlopesOfTheLoss(objective, 0, kFirst);
  }
}

TEST(KtoObjective, RowsOfARunTakeTheCompletionBeforeThem) {
  EXPECT_EQ(MismatchedRows(6, 4), (std::vector<int64_t>{3, 0, 1, 2, 5, 4}));
  EXPECT_EQ(MismatchedRows(5, 4), (std::vector<int64_t>{3, 0, 1, 2, 3}));  // a last run of one
  EXPECT_EQ(MismatchedRows(1, 4), (std::vector<int64_t>{0}));
}

TEST(KtoObjective, TheReferencePointIsTheMeanRatioOfTheMismatchedSequences) {
  const std::vector<LabelledCompletion> rows = {{{1}, {2, 3}, true, 1}, {{4}, {5}, false, 2}};
  // Per row its own completion, then the other's.
  const std::vector<float> reference = {-5, -5, -2, -1, -3, -4};
  KtoObjective objective(rows, 2, reference, {.kind = PreferenceLossKind::kKto, .beta = 0.5});
  const auto before = objective.SequenceBefore(0);
  ASSERT_TRUE(before.has_value());
  EXPECT_EQ(before->prompt[0], 1);
  EXPECT_EQ(before->completions[0][0], 5);
  Numbers mismatched = {.values = {-1}, .completions = {1}};
  EXPECT_NEAR(objective.NumberBefore(0, mismatched.Split<ExampleScores>(mismatched.values)), 1,
              1e-12);
  objective.BeginBatch(FirstNumbers(2), /*sum_before=*/4);  // z0 = 2
  Numbers numbers = {.values = {-3, -3}, .completions = {2}};
  std::vector<MetricSum> metrics;
  // Ratio -6 + 10 = 4: 1 - sigmoid(0.5 (4 - 2)), of two rows.
  EXPECT_NEAR(LossOf(objective, 0, numbers, false, &metrics), (1 - 1 / (1 + std::exp(-1.0))) / 2,
              1e-12);
  EXPECT_NEAR(metrics[0].mean(), 2, 1e-12);
  EXPECT_NEAR(metrics[2].mean(), 1, 1e-12);
  EXPECT_NEAR(metrics[5].mean(), 2, 1e-12);
  ExpectSlopesOfTheLoss(objective, 0, numbers);
}

TEST(RewardObjective, ReadsTheLastTokenOfEachCompletionAndAveragesOverHeads) {
  RewardObjective objective(kPairs, 2, {}, {});
  const std::vector<ScorePlace> places = objective.ScorePlaces(0);
  ASSERT_EQ(places.size(), 2u);
  EXPECT_EQ(places[0].token, 1);
  EXPECT_EQ(places[1].completion, 1u);
  EXPECT_EQ(places[1].token, 0);
  objective.BeginBatch(FirstNumbers(2), 0);
  Numbers numbers = {.values = {2, 0.5f, 1, 1}, .heads = true};  // chosen, then rejected
  std::vector<MetricSum> metrics;
  EXPECT_NEAR(LossOf(objective, 0, numbers, false, &metrics),
              (-LogSigmoidOf(1) - LogSigmoidOf(-0.5)) / 4, 1e-9);
  EXPECT_NEAR(metrics[2].mean(), 0.25, 1e-9);
  EXPECT_NEAR(metrics[3].mean(), 1, 1e-12);
  EXPECT_NEAR(metrics[4].mean(), 0.75, 1e-9);  // of the margins 1 and -0.5
  ExpectSlopesOfTheLoss(objective, 0, numbers);
}

TEST(RewardObjective, EachHeadCountsAPairAsOftenAsItDrewIt) {
  // Head 0 drew the first pair twice, head 1 the second one twice.
  RewardObjective objective(kPairs, 2, {2, 0, 0, 2}, {});
  objective.BeginBatch(FirstNumbers(2), 0);
  Numbers numbers = {.values = {2, 0.5f, 1, 1}, .heads = true};
  EXPECT_NEAR(LossOf(objective, 0, numbers), -LogSigmoidOf(1) / 2, 1e-9);
  // A batch of pairs that a head never drew has no part of that head.
  objective.BeginBatch(std::vector<int64_t>{0}, 0);
  EXPECT_NEAR(LossOf(objective, 0, numbers), -LogSigmoidOf(1) / 2, 1e-9);
  ExpectSlopesOfTheLoss(objective, 0, numbers);
}

TEST(RewardObjective, ABootstrapDrawsAsManyPairsAsThereAreForEachHead) {
  const std::vector<double> counts = BootstrapCounts(2, 100, 7);
  double first = 0, second = 0;
  int64_t missing = 0;
  for (size_t i = 0; i < 100; ++i) {
    first += counts[i];
    second += counts[100 + i];
    missing += counts[i] == 0;
  }
  EXPECT_EQ(first, 100);
  EXPECT_EQ(second, 100);
  EXPECT_NEAR(static_cast<double>(missing), 37, 12);  // about 100 / e
  EXPECT_NE(std::vector<double>(counts.begin(), counts.begin() + 100),
            std::vector<double>(counts.begin() + 100, counts.end()));
  EXPECT_EQ(counts, BootstrapCounts(2, 100, 7));
}

TEST(StepObjective, ScoresTheLastTokenOfEachStepAndAveragesOverSteps) {
  LabelledSteps first = {.prompt = {1}, .completion = {2, 3, 4}, .step_ends = {2, 3}};
  first.labels = {1, 0.25};
  LabelledSteps second = {.prompt = {1}, .completion = {2}, .step_ends = {1}};
  second.labels = {0};
  StepObjective objective({first, second});
  EXPECT_EQ(objective.ScorePlaces(0)[0].token, 1);
  EXPECT_EQ(objective.ScorePlaces(0)[1].token, 2);
  objective.BeginBatch(FirstNumbers(2), 0);
  Numbers numbers = {.values = {2, 1}, .heads = true};
  std::vector<MetricSum> metrics;
  EXPECT_NEAR(LossOf(objective, 0, numbers, false, &metrics),
              (-LogSigmoidOf(2) - 0.25 * LogSigmoidOf(1) - 0.75 * LogSigmoidOf(-1)) / 3, 1e-9);
  EXPECT_NEAR(metrics[2].mean(), 0.5, 1e-12);
  ExpectSlopesOfTheLoss(objective, 0, numbers);
}

}  // namespace
}  // namespace tandem::trainer
