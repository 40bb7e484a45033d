// Train steps of adapters (LoRA): on one and several ranks, with the base as reference, and what is
// handed out for pushes, scores and checkpoints.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/comm/collective.h"
#include "tests/support/rank_threads.h"
#include "tests/support/status_matchers.h"
#include "tests/trainer/toy_model.h"
#include "tests/trainer/train_steps.h"
#include "trainer/train_step.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::Floats;
using ::tandem::testing::Groups;
using ::tandem::testing::IsOk;
using ::tandem::testing::OnRanks;
using ::tandem::testing::ToyConfig;
using ::tandem::testing::ToyWeights;

constexpr int kSteps = 4;

TrainStepSetup ToySetup() {
  TrainStepSetup setup{.config = ToyConfig(), .lora = {.rank = 4, .alpha = 8}, .seed = 11};
  setup.weights = ToyWeights(setup.config);
  return setup;
}

TrainStepOptions Options() {
  TrainStepOptions options;
  options.optimizer.learning_rate = 1e-2;
  options.microbatch_tokens = 40;
  return options;
}

std::unique_ptr<TrainStep> Trained(const TrainStepSetup& setup, const TrainStepOptions& options,
                                   int steps = kSteps) {
  auto step = TrainStep::Create(setup, options).value();
  for (int i = 0; i < steps; ++i) EXPECT_THAT(step->Run(Groups()), IsOk());
  return step;
}

std::map<std::string, std::vector<float>> ValuesByName(const std::vector<HostTensor>& tensors) {
  std::map<std::string, std::vector<float>> values;
  for (const HostTensor& tensor : tensors) values[tensor.spec.name] = Floats(tensor);
  return values;
}

double LargestDifference(const GroupLogprobs& a, const GroupLogprobs& b) {
  double largest = 0;
  for (size_t g = 0; g < a.size(); ++g) {
    for (size_t c = 0; c < a[g].size(); ++c) {
      for (size_t t = 0; t < a[g][c].size(); ++t) {
        largest = std::fmax(largest, std::fabs(a[g][c][t] - b[g][c][t]));
      }
    }
  }
  return largest;
}

TEST(TrainStepLoraTest, AdaptersAreTrainedAndTheBaseStays) {
  const auto step = Trained(ToySetup(), Options());
  int64_t parameters = 0;
  for (const TensorSource& source : step->Masters()) {
    EXPECT_TRUE(source.spec.name.find(".lora_") != std::string::npos) << source.spec.name;
    parameters += source.spec.num_elements();
  }
  EXPECT_EQ(step->num_parameters(), parameters);
  // q and o 24 + 24, k and v 24 + 12, gate and up 24 + 20, down 20 + 24, each times rank 4; 2 layers
  EXPECT_EQ(parameters, 2 * 4 * (2 * 48 + 2 * 36 + 2 * 44 + 44));
  const auto merged = ValuesByName(ValuesOf(step->MergedMasters(DType::kF32).value()));
  const auto start = ValuesByName(ToySetup().weights);
  double squares = 0;
  for (const auto& [name, values] : start) {
    const bool adapted = name.find("_proj.weight") != std::string::npos;
    EXPECT_EQ(merged.at(name) != values, adapted) << name;
    for (size_t i = 0; i < values.size(); ++i) {
      squares += std::pow(merged.at(name)[i] - values[i], 2);
    }
  }
  EXPECT_NEAR(step->DistanceFrom(ToySetup().weights).value(), std::sqrt(squares),
              1e-5 * std::sqrt(squares));
  EXPECT_GT(squares, 0.01);
}

TEST(TrainStepLoraTest, RanksWholeAndShardedEndWhereOneRankEnds) {
  TrainStep::UseThreads(1);
  std::map<std::string, std::vector<float>> alone;
  double distance = 0;
  for (const auto& [num_ranks, sharded] : std::vector<std::pair<int, bool>>{
           {1, false}, {2, false}, {3, false}, {2, true}, {3, true}}) {
    std::vector<std::map<std::string, std::vector<float>>> merged(num_ranks);
    std::vector<double> distances(num_ranks);
    std::vector<GroupLogprobs> scores(num_ranks);
    const auto train = [&](comm::Collective& ranks) -> absl::Status {
      const auto rank = static_cast<size_t>(ranks.rank());
      TrainStepSetup setup = ToySetup();
      setup.collectives = {&ranks};
      setup.buckets = {.shard_parameters = sharded, .bucket_bytes = 1000};
      setup.reference_is_base = true;
      setup.lora.dropout = 0.1;
      TrainStepOptions options = Options();
      options.loss.kl_coefficient = 0.1;
      auto step = TrainStep::Create(setup, options);
      if (!step.ok()) return step.status();
      for (int i = 0; i < kSteps; ++i) {
        const auto report = (*step)->Run(Groups());
        if (!report.ok()) return report.status();
      }
      const auto whole = (*step)->MergedMasters(DType::kF32);
      if (!whole.ok()) return whole.status();
      merged[rank] = ValuesByName(ValuesOf(*whole));
      // Under the adapters of now, handed out and back in.
      const std::vector<HostTensor> own = ValuesOf((*step)->CopyOwnMasters().value());
      const auto under = (*step)->ScoreUnder(own, Rounding::kNearest, Groups());
      const auto live = (*step)->Score(Groups());
      if (!under.ok() || !live.ok()) return under.status();
      EXPECT_EQ(LargestDifference(*under, *live), 0);
      scores[rank] = *live;
      distances[rank] = (*step)->DistanceFrom(setup.weights).value();
      return absl::OkStatus();
    };
    for (const absl::Status& status : OnRanks(num_ranks, train)) ASSERT_THAT(status, IsOk());
    if (num_ranks == 1) {
      alone = merged[0];
      distance = distances[0];
    }
    for (int rank = 0; rank < num_ranks; ++rank) {
      const std::string where = std::to_string(num_ranks) + (sharded ? " sharded" : " whole");
      EXPECT_NEAR(distances[rank], distance, 1e-4 * distance) << where;
      EXPECT_EQ(LargestDifference(scores[rank], scores[0]), 0) << where;
      for (const auto& [name, values] : alone) {
        for (size_t i = 0; i < values.size(); ++i) {
          ASSERT_NEAR(merged[rank].at(name)[i], values[i], 1e-4) << where << " " << name;
        }
      }
    }
  }
}

// Fresh adapters are the base: the KL of the first step is 0, and that of later ones is what a policy
// of all weights has from a reference of its own.
TEST(TrainStepLoraTest, TheReferenceIsThePolicyWithoutItsAdaptersAndHasNoMemory) {
  TrainStepSetup setup = ToySetup();
  setup.reference_is_base = true;
  TrainStepOptions options = Options();
  options.loss.kl_coefficient = 0.05;
  auto step = TrainStep::Create(setup, options).value();
  const StepReport first = step->Run(Groups()).value();
  EXPECT_EQ(first.loss.kl, 0);
  EXPECT_EQ(first.memory.reference, 0);
  const StepReport second = step->Run(Groups()).value();
  EXPECT_GT(second.loss.kl, 0);

  setup.reference_is_base = false;
  setup.reference_weights = setup.weights;
  auto copied = TrainStep::Create(setup, options).value();
  EXPECT_THAT(copied->Run(Groups()), IsOk());
  const StepReport of_copy = copied->Run(Groups()).value();
  EXPECT_NEAR(of_copy.loss.kl, second.loss.kl, 1e-6 * second.loss.kl);
  EXPECT_GT(of_copy.memory.reference, 0);
}

// The scores under merged weights differ from the live ones by rounding only.
TEST(TrainStepLoraTest, ScoresUnderTheMergedModelAreThoseOfTheAdapters) {
  const auto step = Trained(ToySetup(), Options());
  const auto live = step->Score(Groups()).value();
  const std::vector<HostTensor> merged = ValuesOf(step->MergedMasters(DType::kF32).value());
  const auto under = step->ScoreModel(merged, Rounding::kNearest, Groups()).value();
  EXPECT_LT(LargestDifference(live, under), 1e-4);
  const auto of_base = step->ScoreModel(ToySetup().weights, Rounding::kNearest, Groups()).value();
  EXPECT_GT(LargestDifference(live, of_base), 0.1);
}

TEST(TrainStepLoraTest, ARestoredStepGoesOnBitForBitWithDropoutToo) {
  TrainStepSetup setup = ToySetup();
  setup.lora.dropout = 0.2;
  const auto whole = Trained(setup, Options(), 4);
  const auto half = Trained(setup, Options(), 2);
  auto resumed = TrainStep::Create(setup, Options()).value();
  std::vector<TensorSource> masters, moments;
  for (const TensorSource& source : half->Masters())
    masters.push_back(Present(source.read().value()));
  for (const TensorSource& source : half->OptimizerState()) {
    moments.push_back(Present(source.read().value()));
  }
  ASSERT_THAT(resumed->Restore(masters, moments, half->num_updates(), half->numbers()), IsOk());
  for (int i = 0; i < 2; ++i) ASSERT_THAT(resumed->Run(Groups()), IsOk());
  const auto want = whole->Masters(), got = resumed->Masters();
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(Floats(got[i].read().value()), Floats(want[i].read().value())) << want[i].spec.name;
  }
}

TEST(TrainStepLoraTest, StateOfARunWithoutAdaptersIsRefusedByName) {
  TrainStepSetup setup = ToySetup();
  auto adapted = TrainStep::Create(setup, Options()).value();
  setup.lora = {};
  auto full = TrainStep::Create(setup, Options()).value();
  EXPECT_THAT(adapted->Restore(full->Masters(), {}, 0, {}),
              testing::FailsWith(absl::StatusCode::kInvalidArgument, "without trainer.lora"));
  EXPECT_THAT(full->Restore(adapted->Masters(), {}, 0, {}),
              testing::FailsWith(absl::StatusCode::kInvalidArgument, "saved with trainer.lora"));
}

}  // namespace
}  // namespace tandem::trainer
