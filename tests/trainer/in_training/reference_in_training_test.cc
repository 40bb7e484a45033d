// A reference policy that follows the policy, through whole train steps.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/status_matchers.h"
#include "tests/trainer/train_steps.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::Floats;
using ::tandem::testing::GradientOptions;
using ::tandem::testing::Groups;
using ::tandem::testing::IsOk;
using ::tandem::testing::MakeStep;

std::unique_ptr<TrainStep> WithReference(const ReferenceOptions& reference) {
  TrainStepOptions options = GradientOptions();
  options.loss.kl_coefficient = 1e-3;
  options.reference = reference;
  return MakeStep(options, 1, /*with_reference=*/true);
}

// The named masters of the reference, or of the policy.
std::vector<float> Embedding(const TrainStep& step, bool of_reference) {
  const std::string name = "model.embed_tokens.weight";
  if (!of_reference) return Floats(step.Masters()[0].read().value());
  for (const TensorSource& source : step.OptimizerState()) {
    if (source.spec.name == "reference." + name) return Floats(source.read().value());
  }
  return {};
}

TEST(Reference, ThatIsFrozenIsNotSaved) {
  const auto step = WithReference({});
  ASSERT_THAT(step->Run(Groups()), IsOk());
  EXPECT_TRUE(Embedding(*step, true).empty());
}

TEST(Reference, BecomesThePolicyEverySoManySteps) {
  const auto step = WithReference({.kind = ReferenceKind::kReset, .reset_every = 2});
  const std::vector<float> start = Embedding(*step, true);
  ASSERT_EQ(step->Run(Groups())->reference_age, 0);
  EXPECT_EQ(Embedding(*step, true), start);
  EXPECT_NE(Embedding(*step, false), start);
  const auto second = step->Run(Groups());
  EXPECT_EQ(second->reference_age, 1);
  EXPECT_GT(second->loss.k3, 0);
  EXPECT_EQ(Embedding(*step, true), Embedding(*step, false));
  EXPECT_EQ(step->Run(Groups())->loss.k3, 0) << "target and reference are the same";
}

TEST(Reference, IsAnAverageThatDecays) {
  const auto step = WithReference({.kind = ReferenceKind::kEma, .ema_decay = 0.75});
  const std::vector<float> start = Embedding(*step, true);
  ASSERT_THAT(step->Run(Groups()), IsOk());
  const std::vector<float> policy = Embedding(*step, false), average = Embedding(*step, true);
  for (size_t i = 0; i < start.size(); ++i) {
    ASSERT_NEAR(average[i], 0.75f * start[i] + 0.25f * policy[i], 1e-6f);
  }
}

TEST(Reference, GoesOnFromWhatWasSaved) {
  for (const auto kind : {ReferenceKind::kEma, ReferenceKind::kReset}) {
    const ReferenceOptions options = {.kind = kind, .ema_decay = 0.5, .reset_every = 2};
    const auto whole = WithReference(options), before = WithReference(options);
    const auto after = WithReference(options);
    ASSERT_THAT(whole->Run(Groups()), IsOk());
    ASSERT_THAT(before->Run(Groups()), IsOk());
    ASSERT_THAT(after->Restore(before->Masters(), before->OptimizerState(), before->num_updates(),
                               before->numbers()),
                IsOk());
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(whole->Run(Groups())->loss.k3, after->Run(Groups())->loss.k3);
    }
    EXPECT_EQ(Embedding(*whole, true), Embedding(*after, true));
    EXPECT_EQ(Embedding(*whole, false), Embedding(*after, false));
  }
}

}  // namespace
}  // namespace tandem::trainer
