// Data-parallel train steps: ranks that are threads of this process (rank_threads.h). Ranks that
// are processes: end_to_end/ranks_test.py.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <string>

#include "common/comm/collective.h"
#include "common/weights/digest.h"
#include "tests/support/rank_threads.h"
#include "tests/support/status_matchers.h"
#include "tests/trainer/scored_groups.h"
#include "tests/trainer/toy_model.h"
#include "trainer/train_step.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::AddCompletion;
using ::tandem::testing::GroupWithPrompt;
using ::tandem::testing::IsOk;
using ::tandem::testing::OnRanks;
using ::tandem::testing::ScoredGroup;
using ::tandem::testing::ToyConfig;
using ::tandem::testing::ToyWeights;

// Five groups of four completions of 1 to 13 tokens, with behaviour log-probs about those of a
// policy that knows nothing: log 32 = 3.47.
std::vector<ScoredGroup> Groups(uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> gap(-3.47f, 0.3f);
  const auto ids = [&](int count) {
    std::vector<int32_t> result;
    for (int i = 0; i < count; ++i) result.push_back(static_cast<int32_t>(random() % 32));
    return result;
  };
  std::vector<ScoredGroup> groups;
  for (int g = 0; g < 5; ++g) {
    groups.push_back(GroupWithPrompt(g, ids(3 + g)));
    for (int i = 0; i < 4; ++i) {
      auto* scored = AddCompletion(groups.back(), ids(1 + 4 * ((i + g) % 4)),
                                   i % 2 == 0 ? 1.0f : -0.7f + 0.1f * static_cast<float>(g));
      for (float& logprob : *scored->mutable_completion()->mutable_behaviour_logprobs()) {
        logprob = gap(random);
      }
    }
  }
  return groups;
}

struct RankOutcome {
  absl::Status status;
  std::vector<StepReport> reports;
  DigestMap digests;    // of the masters at the end
  double distance = 0;  // ||masters - start||
};

constexpr int kSteps = 10;
uint32_t SeedOf(int step) { return static_cast<uint32_t>(100 + step); }

BucketOptions Buckets(bool sharded) { return {.shard_parameters = sharded, .bucket_bytes = 4000}; }

// Of whole tensors on rank 0, which reads what others hold; all ranks call it.
absl::StatusOr<DigestMap> DigestsOf(const std::vector<TensorSource>& sources) {
  DigestMap digests;
  for (const TensorSource& source : sources) {
    const auto tensor = source.read();
    if (!tensor.ok()) return tensor.status();
    digests[source.spec.name] = Digest128(tensor->bytes);
  }
  return digests;
}

// kSteps train steps of each rank. Gradients are summed in buckets of 4 kB: eight of them.
std::vector<RankOutcome> TrainOnRanks(int num_ranks, const TrainStepOptions& options,
                                      bool with_reference = false, bool sharded = false) {
  TrainStep::UseThreads(1);  // a rank is a thread here
  std::vector<RankOutcome> outcomes(static_cast<size_t>(num_ranks));
  const auto train = [&](comm::Collective& ranks) -> absl::Status {
    RankOutcome& out = outcomes[static_cast<size_t>(ranks.rank())];
    TrainStepSetup setup{
        .config = ToyConfig(), .collectives = {&ranks}, .buckets = Buckets(sharded)};
    setup.weights = ToyWeights(setup.config);
    if (with_reference) setup.reference_weights = ToyWeights(setup.config);
    auto step = TrainStep::Create(setup, options);
    if (!step.ok()) return step.status();
    for (int i = 0; i < kSteps; ++i) {
      auto report = (*step)->Run(Groups(SeedOf(i)));
      if (!report.ok()) return report.status();
      out.reports.push_back(*std::move(report));
    }
    auto digests = DigestsOf((*step)->Masters());
    if (!digests.ok()) return digests.status();
    out.digests = *std::move(digests);
    out.distance = (*step)->DistanceFrom(setup.weights).value();
    return absl::OkStatus();
  };
  const std::vector<absl::Status> statuses = OnRanks(num_ranks, train);
  for (size_t rank = 0; rank < statuses.size(); ++rank) outcomes[rank].status = statuses[rank];
  return outcomes;
}

TrainStepOptions Options(int64_t microbatch_tokens) {
  TrainStepOptions options;
  options.optimizer.learning_rate = 1e-5;
  options.microbatch_tokens = microbatch_tokens;
  return options;
}

// The mean of abs(w A) over the tokens of Groups(seed): what a loss is rounded against.
double MeanWeightedAdvantage(const StepReport& report, uint32_t seed) {
  double sum = 0;
  int64_t count = 0;
  const std::vector<ScoredGroup> groups = Groups(seed);
  for (size_t g = 0; g < groups.size(); ++g) {
    for (int i = 0; i < groups[g].completions_size(); ++i) {
      const auto& scored = groups[g].completions(i);
      const auto& behaviour = scored.completion().behaviour_logprobs();
      const std::vector<float>& proximal = report.proximal_logprobs[g][static_cast<size_t>(i)];
      for (int t = 0; t < behaviour.size(); ++t, ++count) {
        const double ratio = std::exp(proximal[static_cast<size_t>(t)] - behaviour[t]);
        sum += std::min(ratio, offpolicy::CorrectionOptions().max_weight) *
               std::abs(scored.advantage());
      }
    }
  }
  return sum / static_cast<double>(count);
}

void ExpectSameReports(const StepReport& a, const StepReport& b, int step,
                       const std::string& of_what) {
  const std::string where = of_what + ", step " + std::to_string(step);
  const double scale = MeanWeightedAdvantage(a, SeedOf(step));
  EXPECT_GT(scale, 0.1) << where;
  EXPECT_NEAR(a.loss.total, b.loss.total, 1e-6 * scale) << where;
  EXPECT_NEAR(a.optimizer.grad_norm, b.optimizer.grad_norm, 1e-5 * a.optimizer.grad_norm) << where;
  EXPECT_EQ(a.num_tokens, b.num_tokens) << where;
  EXPECT_EQ(a.loss.num_tokens, b.loss.num_tokens) << where;
  EXPECT_NEAR(a.loss.entropy_sum, b.loss.entropy_sum, 1e-5 * a.loss.entropy_sum) << where;
  EXPECT_NEAR(a.loss.ratio_sum, b.loss.ratio_sum, 1e-5 * a.loss.ratio_sum) << where;
  EXPECT_NEAR(a.drift.Get("mean_abs_delta"), b.drift.Get("mean_abs_delta"), 1e-6) << where;
  EXPECT_EQ(a.correction.num_rejected, b.correction.num_rejected) << where;
}

TEST(TrainStepRanksTest, OneTwoAndFourRanksMakeTheSameStepsWhateverTheMicrobatches) {
  const RankOutcome alone = TrainOnRanks(1, Options(1000))[0];
  ASSERT_THAT(alone.status, IsOk());
  for (const int num_ranks : {1, 2, 4}) {
    for (const int64_t tokens : {1000, 40, 1}) {
      const std::string where =
          std::to_string(num_ranks) + " ranks, " + std::to_string(tokens) + " tokens";
      for (const RankOutcome& rank : TrainOnRanks(num_ranks, Options(tokens))) {
        ASSERT_THAT(rank.status, IsOk()) << where;
        for (int i = 0; i < kSteps; ++i) {
          ExpectSameReports(alone.reports[i], rank.reports[i], i, where);
        }
        EXPECT_NEAR(rank.distance, alone.distance, 1e-5 * alone.distance) << where;
      }
    }
  }
}

TEST(TrainStepRanksTest, RanksThatHoldPartsOfTheParametersMakeTheSameStepsToo) {
  const RankOutcome alone = TrainOnRanks(1, Options(1000))[0];
  ASSERT_THAT(alone.status, IsOk());
  for (const int num_ranks : {2, 3, 4}) {
    for (const int64_t tokens : {1000, 40, 1}) {
      const std::string where =
          std::to_string(num_ranks) + " ranks, " + std::to_string(tokens) + " tokens";
      for (const RankOutcome& rank :
           TrainOnRanks(num_ranks, Options(tokens), /*with_reference=*/false, /*sharded=*/true)) {
        ASSERT_THAT(rank.status, IsOk()) << where;
        for (int i = 0; i < kSteps; ++i) {
          ExpectSameReports(alone.reports[i], rank.reports[i], i, where);
        }
        EXPECT_NEAR(rank.distance, alone.distance, 1e-5 * alone.distance) << where;
      }
    }
  }
}

TEST(TrainStepRanksTest, AllRanksEndWithTheSameBitsAndTheSameReport) {
  const std::vector<RankOutcome> ranks = TrainOnRanks(3, Options(40));
  for (const RankOutcome& rank : ranks) {
    ASSERT_THAT(rank.status, IsOk());
    EXPECT_EQ(rank.digests, ranks[0].digests);
    for (int i = 0; i < kSteps; ++i) {
      EXPECT_EQ(rank.reports[i].loss.total, ranks[0].reports[i].loss.total);
      EXPECT_EQ(rank.reports[i].proximal_logprobs, ranks[0].reports[i].proximal_logprobs);
    }
  }
}

void ExpectSameAsAlone(const TrainStepOptions& options, bool with_reference = false) {
  const RankOutcome alone = TrainOnRanks(1, options, with_reference)[0];
  ASSERT_THAT(alone.status, IsOk());
  for (const bool sharded : {false, true}) {
    for (const RankOutcome& rank : TrainOnRanks(2, options, with_reference, sharded)) {
      ASSERT_THAT(rank.status, IsOk());
      for (int i = 0; i < kSteps; ++i) {
        ExpectSameReports(alone.reports[i], rank.reports[i], i, sharded ? "sharded" : "whole");
      }
      EXPECT_NEAR(rank.distance, alone.distance, 1e-5 * alone.distance);
    }
  }
}

TEST(TrainStepRanksTest, SeveralUpdatesOfABatchAreShared) {
  TrainStepOptions options = Options(30);
  options.num_minibatches = 2;
  options.num_epochs = 2;
  ExpectSameAsAlone(options);
  options.correction.mode = offpolicy::CorrectionMode::kBypass;
  ExpectSameAsAlone(options);
}

// Numbers of the whole batch that every rank needs: the mean weight, m2po's cutoff, KL in rewards.
TEST(TrainStepRanksTest, WhatIsPooledOverTheBatchIsPooledOverRanks) {
  TrainStepOptions normalised = Options(30);
  normalised.correction.batch_normalise = true;
  ExpectSameAsAlone(normalised);
  TrainStepOptions m2po = Options(30);
  m2po.num_minibatches = 2;
  m2po.correction.mode = offpolicy::CorrectionMode::kBypass;
  m2po.loss.objective.kind = offpolicy::ObjectiveKind::kM2po;
  ExpectSameAsAlone(m2po);
  TrainStepOptions kl = Options(30);
  kl.loss.kl_coefficient = 0.1;
  kl.loss.kl_place = KlPlace::kReward;
  ExpectSameAsAlone(kl, /*with_reference=*/true);
}

// Groups(seed) as pairs: the first and the last member of each.
std::vector<ScoredGroup> Pairs(uint32_t seed) {
  std::vector<ScoredGroup> groups = Groups(seed);
  for (ScoredGroup& group : groups) {
    for (int i = 0; i < 4; ++i) {
      group.mutable_completions(i)->set_advantage(i == 0 ? 1.0f : -1.0f);
      group.mutable_completions(i)->set_masked(i == 1 || i == 2);
    }
  }
  return groups;
}

TEST(TrainStepRanksTest, LossesOfPairsAreThoseOfOneRankWithTheSameNumbers) {
  TrainStepOptions options = Options(30);
  options.loss.objective.kind = offpolicy::ObjectiveKind::kPreference;
  options.correction.kind = offpolicy::CorrectionKind::kSequenceTis;
  options.loss.preference.rpo_alpha = 0.2;
  options.num_minibatches = 2;
  std::map<int, std::vector<std::pair<std::string, double>>> numbers;  // by number of ranks
  for (const int num_ranks : {1, 2, 3}) {
    const auto train = [&](comm::Collective& ranks) -> absl::Status {
      TrainStepSetup setup{.config = ToyConfig(), .collectives = {&ranks}};
      setup.weights = setup.reference_weights = ToyWeights(setup.config);
      auto step = TrainStep::Create(setup, options);
      if (!step.ok()) return step.status();
      for (int i = 0; i < 3; ++i) {
        const auto report = (*step)->Run(Pairs(SeedOf(i)), {.value = 2});
        if (!report.ok()) return report.status();
        if (ranks.rank() == 0 && i == 2) numbers[num_ranks] = NamedNumbers(*report);
      }
      return absl::OkStatus();
    };
    for (const absl::Status& status : OnRanks(num_ranks, train)) ASSERT_THAT(status, IsOk());
  }
  int compared = 0;
  for (const int num_ranks : {2, 3}) {
    for (size_t i = 0; i < numbers[1].size(); ++i) {
      const auto& [name, value] = numbers[1][i];
      const bool of_pairs = name.starts_with("pairs/") || name.starts_with("rewards/") ||
                            name.starts_with("logps/") || name.starts_with("loss/pref");
      if (!of_pairs && name != "loss/total" && name != "optimizer/grad_norm") continue;
      EXPECT_NEAR(numbers[num_ranks][i].second, value, 1e-5 * (1 + std::abs(value))) << name;
      ++compared;
    }
  }
  EXPECT_EQ(compared, 2 * 18);
}

TEST(TrainStepRanksTest, MoreRanksThanRowsIsNoError) {
  for (const RankOutcome& rank : TrainOnRanks(8, Options(1000))) {
    ASSERT_THAT(rank.status, IsOk());
    EXPECT_EQ(rank.reports.size(), static_cast<size_t>(kSteps));
  }
}

// One row of one rank: all must know.
TEST(TrainStepRanksTest, AStepThatIsNotFiniteOnOneRankIsSkippedByAllAndTheNextIsTrained) {
  TrainStep::UseThreads(1);
  std::vector<std::vector<StepReport>> reports(3);
  std::vector<DigestMap> before(3), skipped(3), after(3);
  const auto train = [&](comm::Collective& ranks) -> absl::Status {
    const auto rank = static_cast<size_t>(ranks.rank());
    TrainStepSetup setup{.config = ToyConfig(), .collectives = {&ranks}, .buckets = Buckets(false)};
    setup.weights = ToyWeights(setup.config);
    auto step = TrainStep::Create(setup, Options(40));
    if (!step.ok()) return step.status();
    before[rank] = DigestsOf((*step)->Masters()).value();
    std::vector<ScoredGroup> groups = Groups(7);
    // Thirteen tokens of it overflow.
    groups[3].mutable_completions(0)->set_advantage(std::numeric_limits<float>::max());
    for (const auto& batch : {groups, Groups(8)}) {
      auto report = (*step)->Run(batch);
      if (!report.ok()) return report.status();
      reports[rank].push_back(*std::move(report));
      (reports[rank].size() == 1 ? skipped : after)[rank] = DigestsOf((*step)->Masters()).value();
    }
    return absl::OkStatus();
  };
  for (const absl::Status& status : OnRanks(3, train)) ASSERT_THAT(status, IsOk());
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_NE(reports[rank][0].skip_reason, "");
    EXPECT_EQ(reports[rank][0].skip_reason, reports[0][0].skip_reason);
    EXPECT_EQ(skipped[rank], before[rank]);
    EXPECT_EQ(reports[rank][1].skip_reason, "");
    EXPECT_NE(after[rank], before[rank]);
    EXPECT_EQ(after[rank], after[0]);
  }
}

using State = std::vector<std::pair<std::string, std::vector<std::byte>>>;

// What rank 0 reads; the others read too.
absl::Status ReadState(const TrainStep& step, State& state) {
  for (const TensorSource& source : step.OptimizerState()) {
    const auto tensor = source.read();
    if (!tensor.ok()) return tensor.status();
    state.emplace_back(source.spec.name,
                       std::vector<std::byte>(tensor->bytes.begin(), tensor->bytes.end()));
  }
  return absl::OkStatus();
}

// A run that was saved: masters, moments, updates.
struct Saved {
  std::vector<HostTensor> masters;
  State moments;
  int64_t num_updates = 0;
};

std::vector<TensorSource> Sources(const TrainStep& step, const State& moments) {
  std::vector<TensorSource> sources = step.OptimizerState();  // names and shapes
  for (size_t i = 0; i < sources.size(); ++i) {
    sources[i] = tandem::Present({sources[i].spec, moments[i].second, nullptr});
  }
  return sources;
}

// Restores `from` on all of `num_ranks` where it is not null, makes `steps` steps and saves.
Saved TrainAndSave(int num_ranks, int steps, const Saved* from, bool sharded = false) {
  Saved saved;
  for (const absl::Status& status : OnRanks(num_ranks, [&](comm::Collective& ranks) {
         TrainStepSetup setup{
             .config = ToyConfig(), .collectives = {&ranks}, .buckets = Buckets(sharded)};
         setup.weights = ToyWeights(setup.config);
         auto step = TrainStep::Create(setup, Options(40)).value();
         if (from != nullptr) {
           const absl::Status restored = step->Restore(
               PresentAll(from->masters), Sources(*step, from->moments), from->num_updates);
           if (!restored.ok()) return restored;
         }
         for (int i = 0; i < steps; ++i) {
           const auto report = step->Run(Groups(SeedOf(i)));
           if (!report.ok()) return report.status();
         }
         State moments;
         std::vector<HostTensor> masters;
         absl::Status read = ReadState(*step, moments);
         for (const TensorSource& source : step->Masters()) {
           const auto view = source.read();
           if (!view.ok()) return view.status();
           auto copy =
               std::make_shared<std::vector<std::byte>>(view->bytes.begin(), view->bytes.end());
           masters.push_back({view->spec, *copy, copy});
         }
         if (ranks.rank() != 0) return read;
         saved = {std::move(masters), std::move(moments), step->num_updates()};
         return read;
       })) {
    EXPECT_THAT(status, IsOk());
  }
  return saved;
}

TEST(TrainStepRanksTest, MomentsSavedByThreeRanksAreRestoredBitForBitOnAnyNumberOfRanks) {
  const Saved saved = TrainAndSave(3, 3, nullptr);
  ASSERT_EQ(saved.moments[0].first, "exp_avg.model.embed_tokens.weight");
  EXPECT_EQ(saved.moments[0].second.size(), 32u * 24 * 4);
  for (const int num_ranks : {1, 2, 3, 5}) {
    const Saved again = TrainAndSave(num_ranks, 0, &saved);
    EXPECT_EQ(again.moments, saved.moments) << num_ranks;
    EXPECT_EQ(DigestTensors(again.masters), DigestTensors(saved.masters)) << num_ranks;
    EXPECT_EQ(again.num_updates, 3);
  }
}

TEST(TrainStepRanksTest, WhatRanksSavedThatHoldPartsIsRestoredBitForBitOnAnyNumberOfThem) {
  const Saved saved = TrainAndSave(3, 3, nullptr, /*sharded=*/true);
  ASSERT_EQ(saved.masters[0].bytes.size(), 32u * 24 * 4) << "whole on rank 0";
  for (const int num_ranks : {1, 2, 5}) {
    for (const bool sharded : {false, true}) {
      const Saved again = TrainAndSave(num_ranks, 0, &saved, sharded);
      EXPECT_EQ(again.moments, saved.moments) << num_ranks;
      EXPECT_EQ(DigestTensors(again.masters), DigestTensors(saved.masters)) << num_ranks;
    }
  }
}

// Live scores, and those under masters that were kept before the step.
TEST(TrainStepRanksTest, ScoresAreThoseOfOneRank) {
  const auto scores_of = [](int num_ranks, bool sharded) {
    std::vector<std::pair<GroupLogprobs, GroupLogprobs>> scores(static_cast<size_t>(num_ranks));
    for (const absl::Status& status : OnRanks(num_ranks, [&](comm::Collective& ranks) {
           TrainStepSetup setup{
               .config = ToyConfig(), .collectives = {&ranks}, .buckets = Buckets(sharded)};
           setup.weights = ToyWeights(setup.config);
           auto step = TrainStep::Create(setup, Options(40)).value();
           const std::vector<TensorPart> copies = step->CopyOwnMasters().value();
           std::vector<HostTensor> kept;
           for (const TensorPart& part : copies) kept.push_back(part.values);
           if (const auto report = step->Run(Groups(1)); !report.ok()) return report.status();
           auto now = step->Score(Groups(2));
           auto before = step->ScoreUnder(kept, Rounding::kNearest, Groups(2));
           if (!now.ok() || !before.ok()) return now.ok() ? before.status() : now.status();
           scores[static_cast<size_t>(ranks.rank())] = {*std::move(now), *std::move(before)};
           return absl::OkStatus();
         })) {
      EXPECT_THAT(status, IsOk());
    }
    return scores;
  };
  const auto expect_near = [](const GroupLogprobs& a, const GroupLogprobs& b) {
    for (size_t g = 0; g < a.size(); ++g) {
      for (size_t i = 0; i < a[g].size(); ++i) {
        ASSERT_EQ(a[g][i].size(), b.at(g).at(i).size());
        for (size_t t = 0; t < a[g][i].size(); ++t) ASSERT_NEAR(a[g][i][t], b[g][i][t], 1e-5);
      }
    }
  };
  const auto alone = scores_of(1, false)[0];
  EXPECT_NE(alone.first, alone.second);
  for (const bool sharded : {false, true}) {
    for (const auto& [now, before] : scores_of(3, sharded)) {
      expect_near(now, alone.first);
      expect_near(before, alone.second);
    }
  }
}

TEST(TrainStepRanksTest, TwoRanksGoOnBitwiseFromASavedState) {
  const Saved saved = TrainAndSave(2, 2, nullptr);
  const Saved twice = TrainAndSave(2, 2, &saved), again = TrainAndSave(2, 2, &saved);
  EXPECT_EQ(DigestTensors(twice.masters), DigestTensors(again.masters));
  EXPECT_EQ(twice.moments, again.moments);
  EXPECT_NE(twice.moments, saved.moments);
  // One rank goes on the same way, to rounding.
  const Saved alone = TrainAndSave(1, 2, &saved);
  for (size_t i = 0; i < alone.masters.size(); ++i) {
    const auto* a = reinterpret_cast<const float*>(alone.masters[i].bytes.data());
    const auto* b = reinterpret_cast<const float*>(twice.masters[i].bytes.data());
    for (int64_t e = 0; e < alone.masters[i].spec.num_elements(); ++e) {
      ASSERT_NEAR(a[e], b[e], 1e-6) << alone.masters[i].spec.name;
    }
  }
}

// 8 bytes for each of the toy's 7224 parameters, shared out: a bucket's parts are equal but for the
// padding, a few times 16 elements.
TEST(TrainStepRanksTest, EachRankHoldsItsShareOfTheMoments) {
  TrainStepSetup setup{.config = ToyConfig()};
  setup.weights = ToyWeights(setup.config);
  const auto whole = TrainStep::Create(setup, Options(1000)).value();
  const int64_t total = 8 * whole->num_parameters();
  const StepReport of_one = whole->Run(Groups(1)).value();
  EXPECT_EQ(of_one.optimizer.state_bytes, total);
  EXPECT_EQ(of_one.memory.masters, total / 2);
  EXPECT_EQ(of_one.memory.gradients, total / 2);
  EXPECT_EQ(of_one.memory.reference, 0);
  for (const int num_ranks : {2, 4}) {
    int64_t sum = 0;
    for (const RankOutcome& rank : TrainOnRanks(num_ranks, Options(1000))) {
      ASSERT_THAT(rank.status, IsOk());
      const int64_t held = rank.reports[0].optimizer.state_bytes;
      EXPECT_NEAR(static_cast<double>(held), static_cast<double>(total / num_ranks), 8 * 16 * 8);
      sum += held;
    }
    EXPECT_EQ(sum, total);
  }
}

}  // namespace
}  // namespace tandem::trainer
