// SupervisedModel over a toy model, on one rank and on ranks that are threads (rank_threads.h).
#include "trainer/supervised/supervised_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>

#include "common/comm/collective.h"
#include "common/weights/digest.h"
#include "tests/support/rank_threads.h"
#include "tests/support/status_matchers.h"
#include "tests/trainer/supervised/toy_examples.h"
#include "tests/trainer/toy_model.h"
#include "trainer/supervised/objectives/completion_objective.h"
#include "trainer/supervised/objectives/kto_objective.h"
#include "trainer/supervised/objectives/preference_objective.h"
#include "trainer/supervised/objectives/reward_objective.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FirstNumbers;
using ::tandem::testing::IsOk;
using ::tandem::testing::OnRanks;
using ::tandem::testing::ToyCompletions;
using ::tandem::testing::ToyConfig;
using ::tandem::testing::ToyPairs;
using ::tandem::testing::ToyTensor;
using ::tandem::testing::ToyWeights;

constexpr int kUpdates = 5;

SupervisedModelSetup ToySetup(int64_t num_heads = 0) {
  SupervisedModelSetup setup = {.config = ToyConfig(),
                                .num_heads = num_heads,
                                .optimizer = {.learning_rate = 1e-3},
                                .microbatch_tokens = 40};
  setup.weights = ToyWeights(setup.config);
  if (num_heads == 0) return setup;
  std::vector<float> head;
  for (int64_t i = 0; i < num_heads * setup.config.hidden_size; ++i) {
    head.push_back(0.1f * static_cast<float>(i % 7 - 3));
  }
  setup.head = ToyTensor({"score.weight", DType::kF32, {num_heads, setup.config.hidden_size}},
                         std::move(head));
  return setup;
}

using MakeObjective = std::function<std::unique_ptr<SupervisedObjective>()>;

struct Outcome {
  std::vector<SupervisedReport> reports;
  SupervisedReport evaluation;
  DigestMap digests;  // rank 0
};

Outcome TrainOn(int num_ranks, bool sharded, const MakeObjective& make, int64_t num_heads = 0,
                int64_t microbatch_tokens = 40) {
  SupervisedModel::UseThreads(1);  // a rank is a thread here
  Outcome outcome;
  const auto statuses = OnRanks(num_ranks, [&](comm::Collective& ranks) -> absl::Status {
    SupervisedModelSetup setup = ToySetup(num_heads);
    setup.microbatch_tokens = microbatch_tokens;
    if (num_ranks > 1) setup.collectives = {&ranks};
    setup.shard_parameters = sharded;
    auto model = SupervisedModel::Create(setup);
    if (!model.ok()) return model.status();
    const auto objective = make();
    for (int i = 0; i < kUpdates; ++i) {
      auto report = (*model)->Train(*objective, FirstNumbers(objective->num_examples()));
      if (!report.ok()) return report.status();
      if (ranks.rank() == 0) outcome.reports.push_back(*report);
    }
    auto evaluation = (*model)->Evaluate(*objective, FirstNumbers(3));
    if (!evaluation.ok()) return evaluation.status();
    if (ranks.rank() == 0) outcome.evaluation = *evaluation;
    for (const TensorSource& source : (*model)->Weights()) {
      auto tensor = source.read();
      if (!tensor.ok()) return tensor.status();
      if (ranks.rank() == 0) outcome.digests[source.spec.name] = Digest128(tensor->bytes);
    }
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) EXPECT_THAT(status, IsOk());
  return outcome;
}

void ExpectSameNumbers(const Outcome& a, const Outcome& b, const std::string& where) {
  ASSERT_EQ(a.reports.size(), b.reports.size()) << where;
  for (size_t i = 0; i < a.reports.size(); ++i) {
    EXPECT_NEAR(a.reports[i].loss, b.reports[i].loss, 2e-6) << where << ", update " << i;
    EXPECT_EQ(a.reports[i].num_tokens, b.reports[i].num_tokens) << where << ", update " << i;
    EXPECT_NEAR(a.reports[i].grad_norm, b.reports[i].grad_norm, 2e-5 * a.reports[i].grad_norm)
        << where << ", update " << i;
    for (size_t m = 0; m < a.reports[i].metrics.size(); ++m) {
      EXPECT_NEAR(a.reports[i].metrics[m], b.reports[i].metrics[m], 2e-5) << where << " " << m;
    }
  }
  EXPECT_NEAR(a.evaluation.loss, b.evaluation.loss, 2e-6) << where;
}

void ExpectSameOnRanks(const MakeObjective& make, int64_t num_heads = 0) {
  const Outcome alone = TrainOn(1, false, make, num_heads);
  EXPECT_LT(alone.reports.back().loss, alone.reports.front().loss);
  EXPECT_GT(alone.reports.front().grad_norm, 1e-3);
  ExpectSameNumbers(alone, TrainOn(1, false, make, num_heads, 1), "a row for each example");
  for (const int num_ranks : {2, 3}) {
    ExpectSameNumbers(alone, TrainOn(num_ranks, false, make, num_heads), "ranks");
    ExpectSameNumbers(alone, TrainOn(num_ranks, true, make, num_heads), "sharded");
  }
}

// Reference log-probs that are not those of the model, so that losses start off their minimum.
std::vector<float> SomeReference(size_t count) {
  std::vector<float> values;
  for (size_t i = 0; i < count; ++i) values.push_back(-3 - 0.2f * static_cast<float>(i % 5));
  return values;
}

size_t NumTokens(const std::vector<PreferencePair>& pairs) {
  size_t count = 0;
  for (const PreferencePair& pair : pairs) count += pair.chosen.size() + pair.rejected.size();
  return count;
}

// Examples 1, 2 and 8 have the prompt of the first, so that a row holds it once for several.
template <typename Example>
std::vector<Example> WithOnePromptOfFour(std::vector<Example> examples) {
  for (const size_t i : {1, 2, 8}) examples[i].prompt = examples[0].prompt;
  return examples;
}

TEST(SupervisedModel, OneTwoAndThreeRanksMakeTheSameUpdatesOfCompletions) {
  ExpectSameOnRanks([] { return std::make_unique<CompletionObjective>(ToyCompletions(9)); });
}

TEST(SupervisedModel, OneTwoAndThreeRanksMakeTheSameUpdatesOfPairs) {
  const std::vector<PreferencePair> pairs = WithOnePromptOfFour(ToyPairs(9));
  const std::vector<float> reference = SomeReference(NumTokens(pairs));
  for (const PreferenceLossOptions& options :
       {PreferenceLossOptions{.kind = PreferenceLossKind::kDpo, .rpo_alpha = 0.2},
        PreferenceLossOptions{.kind = PreferenceLossKind::kOrpo}}) {
    ExpectSameOnRanks(
        [&] { return std::make_unique<PreferenceObjective>(pairs, reference, options); });
  }
}

TEST(SupervisedModel, KtosReferencePointIsThatOfAllRanks) {
  const std::vector<LabelledCompletion> rows = WithOnePromptOfFour(ToyCompletions(9));
  size_t count = 0;
  const std::vector<int64_t> mismatched = MismatchedRows(9, 4);
  for (int64_t i = 0; i < 9; ++i) {
    for (const auto& ids : WithMismatched(rows, mismatched, i).completions) count += ids.size();
  }
  // Low reference log-probs, so that z0 is over 0.
  const std::vector<float> reference(count, -6.0f);
  ExpectSameOnRanks([&] {
    return std::make_unique<KtoObjective>(rows, 4, reference,
                                          PreferenceLossOptions{.kind = PreferenceLossKind::kKto});
  });
}

TEST(SupervisedModel, OneTwoAndThreeRanksMakeTheSameUpdatesOfARewardModel) {
  const std::vector<PreferencePair> pairs = WithOnePromptOfFour(ToyPairs(9));
  ExpectSameOnRanks(
      [&] {
        return std::make_unique<RewardObjective>(pairs, 2, BootstrapCounts(2, 9, 1),
                                                 RewardModelLossOptions());
      },
      /*num_heads=*/2);
}

TEST(SupervisedModel, AGradientIsThatOfTheLoss) {
  // One update without clipping or momentum moves a weight by the learning rate times the sign of
  // its gradient, so the loss falls by about the learning rate times the sum of abs(gradient). Here
  // the loss itself is differentiated: two models whose embedding differs by a step.
  SupervisedModelSetup setup = ToySetup();
  CompletionObjective objective(ToyCompletions(4));
  const auto loss_with = [&](float step) {
    SupervisedModelSetup moved = setup;
    moved.weights = ToyWeights(setup.config);
    auto* values = reinterpret_cast<float*>(const_cast<std::byte*>(moved.weights[0].bytes.data()));
    values[5] += step;
    const auto model = SupervisedModel::Create(moved).value();
    return model->Evaluate(objective, FirstNumbers(4)).value().loss;
  };
  const double slope = (loss_with(5e-3f) - loss_with(-5e-3f)) / 1e-2;
  ASSERT_GT(std::abs(slope), 1e-4);
  setup.optimizer = {
      .learning_rate = 1e-4, .beta1 = 0, .beta2 = 0, .epsilon = 1, .max_grad_norm = 0};
  const auto model = SupervisedModel::Create(setup).value();
  ASSERT_THAT(model->Train(objective, FirstNumbers(4)), IsOk());
  const HostTensor embedding = model->Weights()[0].read().value();
  const float after = reinterpret_cast<const float*>(embedding.bytes.data())[5];
  const float before = reinterpret_cast<const float*>(setup.weights[0].bytes.data())[5];
  // AdamW without memory of past gradients: lr g / (|g| + 1).
  EXPECT_NEAR((before - after) / 1e-4, slope / (std::abs(slope) + 1), 0.02 * std::abs(slope));
}

TEST(SupervisedModel, LogprobsComeInTheOrderOfExamplesWhateverTheRows) {
  const std::vector<PreferencePair> pairs = WithOnePromptOfFour(ToyPairs(9));
  const auto tokens_of = [&](int64_t i) { return TokensOf(pairs[static_cast<size_t>(i)]); };
  SupervisedModelSetup setup = ToySetup();
  setup.trainable = false;
  const auto together = SupervisedModel::Create(setup).value()->Logprobs(9, tokens_of);
  setup.microbatch_tokens = 1;
  const auto apart = SupervisedModel::Create(setup).value()->Logprobs(9, tokens_of);
  ASSERT_THAT(together, IsOk());
  ASSERT_EQ(together->size(), NumTokens(pairs));
  for (size_t i = 0; i < together->size(); ++i) {
    EXPECT_NEAR((*together)[i], (*apart)[i], 1e-5) << i;
    EXPECT_LT((*together)[i], 0);
  }
  EXPECT_NE((*together)[0], (*together)[1]);
}

TEST(SupervisedModel, ALossThatIsNotFiniteChangesNothing) {
  SupervisedModelSetup setup = ToySetup();
  setup.weights = ToyWeights(setup.config);
  auto* values = reinterpret_cast<float*>(const_cast<std::byte*>(setup.weights[0].bytes.data()));
  values[0] = std::numeric_limits<float>::infinity();
  const auto model = SupervisedModel::Create(setup).value();
  CompletionObjective objective(ToyCompletions(4));
  const auto report = model->Train(objective, FirstNumbers(4));
  ASSERT_THAT(report, IsOk());
  EXPECT_TRUE(report->skipped);
  EXPECT_EQ(model->num_updates(), 0);
}

}  // namespace
}  // namespace tandem::trainer
