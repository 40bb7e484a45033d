// Ranks that are threads of this process (rank_threads.h).
#include "trainer/optimizer/parameter_buckets.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "common/comm/group.h"
#include "nlohmann/json.hpp"
#include "tests/support/rank_threads.h"
#include "tests/support/status_matchers.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::OnRanks;

// Three parameters of 40 elements; with buckets of 64 bytes each has one of its own, the last one
// the first. Two ranks: 64 elements with padding, of which rank 0 owns elements 0 to 31.
std::vector<NamedParameter> BucketParameters() {
  std::vector<NamedParameter> parameters;
  for (const char* const name : {"a", "b", "c"}) {
    parameters.push_back({name, at::ones({4, 10}).requires_grad_(true)});
  }
  return parameters;
}

// As a backward pass comes to them: the last one first.
const std::vector<std::vector<size_t>> kStages = {{2}, {1}, {0}};
constexpr size_t StageOf(size_t parameter) { return 2 - parameter; }

at::Tensor& GradientOf(const NamedParameter& parameter) { return parameter.master.mutable_grad(); }

float Element(const at::Tensor& tensor, int64_t index) {
  return tensor.const_data_ptr<float>()[index];
}

// An element of this rank's slice and one of the other's.
struct Places {
  int64_t own, other;
};
Places PlacesOf(const comm::Collective& group) {
  return group.rank() == 0 ? Places{31, 32} : Places{32, 31};
}

// Operations of all groups of this process that are done.
int64_t NumDone() {
  int64_t count = 0;
  const auto record = nlohmann::json::parse(comm::FlightRecord());
  for (const auto& entry : record.value("entries", nlohmann::json::array())) {
    count += entry["retired"] == true;
  }
  return count;
}

bool WaitUntilDone(int64_t count) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (NumDone() < count && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
  }
  return NumDone() >= count;
}

// Rank r's gradients are r + 1: their sum over two ranks is 3.
TEST(ParameterBucketsTest, SumsAreMadeWhileLaterGradientsAreStillToCome) {
  const int64_t before = NumDone();
  for (const absl::Status& status : OnRanks(2, [&](comm::Collective& group) {
         const std::vector<NamedParameter> parameters = BucketParameters();
         ParameterBuckets buckets(&parameters, kStages, {&group}, {.bucket_bytes = 64});
         const auto own = static_cast<float>(group.rank() + 1);
         GradientOf(parameters[2]).fill_(own);
         buckets.ExpectLastPass();
         buckets.EndStage(Pass::kBackward, StageOf(2));
         EXPECT_TRUE(WaitUntilDone(before + 2)) << "one for each rank";
         GradientOf(parameters[1]).fill_(own);
         GradientOf(parameters[0]).fill_(10 * own);
         const absl::Status finished = buckets.FinishGradients();
         const int64_t place = PlacesOf(group).own;
         EXPECT_EQ(Element(GradientOf(parameters[2]), place), 3);
         EXPECT_EQ(Element(GradientOf(parameters[1]), place), 3);
         EXPECT_EQ(Element(GradientOf(parameters[0]), place), 30);
         return finished;
       })) {
    EXPECT_THAT(status, IsOk());
  }
}

// The order in which gradients are completed is not that of the buckets on one rank, and the other
// completes none.
TEST(ParameterBucketsTest, BucketsAreSummedInOneOrderWhateverTheOrderOfGradients) {
  for (const absl::Status& status : OnRanks(2, [](comm::Collective& group) {
         const std::vector<NamedParameter> parameters = BucketParameters();
         ParameterBuckets buckets(&parameters, kStages, {&group}, {.bucket_bytes = 64});
         const auto [own, other] = PlacesOf(group);
         for (int update = 1; update <= 3; ++update) {
           if (group.rank() == 0) buckets.ExpectLastPass();
           for (size_t i = 0; i < 3; ++i) {
             GradientOf(parameters[i]).fill_(static_cast<float>(i) + 1);
             if (group.rank() == 0) buckets.EndStage(Pass::kBackward, StageOf(i));
           }
           if (absl::Status finished = buckets.FinishGradients(); !finished.ok()) return finished;
           for (size_t i = 0; i < 3; ++i) {
             const at::Tensor& gradient = GradientOf(parameters[i]);
             EXPECT_EQ(Element(gradient, own), 2 * (static_cast<float>(i) + 1)) << update;
             EXPECT_EQ(Element(gradient, other), 0) << update;
           }
         }
         return absl::OkStatus();
       })) {
    EXPECT_THAT(status, IsOk());
  }
}

TEST(ParameterBucketsTest, EveryElementOfAMasterComesFromItsOwner) {
  for (
      const absl::Status& status : OnRanks(2, [](comm::Collective& group) {
        const std::vector<NamedParameter> parameters = BucketParameters();
        ParameterBuckets buckets(&parameters, kStages, {&group}, {.bucket_bytes = 64});
        EXPECT_EQ(Element(parameters[1].master, 39), 1) << "what it was before";
        EXPECT_EQ(buckets.own_slices()[1], (group.rank() == 0 ? Slice{1, 0, 32} : Slice{1, 32, 8}));
        parameters[1].master.detach().fill_(static_cast<float>(group.rank() + 7));
        const absl::Status shared = buckets.ShareMasters();
        EXPECT_EQ(Element(parameters[1].master, 31), 7);
        EXPECT_EQ(Element(parameters[1].master, 32), 8);
        EXPECT_EQ(Element(parameters[0].master, 0), 1);
        return shared;
      })) {
    EXPECT_THAT(status, IsOk());
  }
}

// Element i of the whole is i.
TEST(ParameterBucketsTest, RankZeroCollectsWhatEachRankHasAPartOf) {
  for (const absl::Status& status : OnRanks(2, [](comm::Collective& group) {
         const std::vector<NamedParameter> parameters = BucketParameters();
         ParameterBuckets buckets(&parameters, kStages, {&group}, {.bucket_bytes = 64});
         const Slice& slice = buckets.own_slices()[2];
         const at::Tensor part =
             at::arange(slice.begin, slice.begin + slice.num_elements, at::kFloat);
         const auto whole = buckets.Collect(2, {part});
         if (!whole.ok()) return whole.status();
         EXPECT_EQ(whole->defined(), group.rank() == 0);
         if (whole->defined()) {
           EXPECT_TRUE(whole->equal(at::arange(0, 40, at::kFloat)));
         }
         return absl::OkStatus();
       })) {
    EXPECT_THAT(status, IsOk());
  }
}

TEST(ParameterBucketsTest, ARankAloneKeepsItsGradientsAsTheyAreAndOwnsEverything) {
  const std::vector<NamedParameter> parameters = BucketParameters();
  ParameterBuckets buckets(&parameters, kStages, {}, {.bucket_bytes = 64});
  EXPECT_FALSE(GradientOf(parameters[0]).defined());
  GradientOf(parameters[0]) = at::full({4, 10}, 7.0f);
  buckets.ExpectLastPass();
  buckets.EndStage(Pass::kBackward, StageOf(0));
  EXPECT_THAT(buckets.FinishGradients(), IsOk());
  EXPECT_THAT(buckets.ShareMasters(), IsOk());
  EXPECT_EQ(Element(GradientOf(parameters[0]), 39), 7);
  EXPECT_EQ(buckets.own_slices(), (std::vector<Slice>{{0, 0, 40}, {1, 0, 40}, {2, 0, 40}}));
}

// Element i of parameter p is 100 p + i.
std::vector<NamedParameter> Counted() {
  std::vector<NamedParameter> parameters;
  for (int p = 0; p < 3; ++p) {
    const at::Tensor values = at::arange(100 * p, 100 * p + 40, at::kFloat).view({4, 10});
    parameters.push_back(
        {std::string(1, static_cast<char>('a' + p)), values.clone().requires_grad_(true)});
  }
  return parameters;
}

constexpr BucketOptions kSharded = {.shard_parameters = true};
constexpr int64_t kBucketBytes = 64 * 4;  // 40 elements and padding to 2 x 32

TEST(ParameterBucketsTest, AShardedParameterIsWholeFromItsStagesBeginToTheOneAfterTheNext) {
  for (const absl::Status& status : OnRanks(2, [](comm::Collective& group) {
         const std::vector<NamedParameter> parameters = Counted();
         ParameterBuckets buckets(&parameters, kStages, {&group}, kSharded);
         const auto is_there = [&](size_t i) {
           return parameters[i].master.storage().nbytes() > 0;
         };
         for (size_t i = 0; i < 3; ++i) EXPECT_FALSE(is_there(i));
         // Forward: stage 2 (parameter 0) first.
         for (size_t stage = 3; stage-- > 0;) {
           const size_t parameter = 2 - stage;
           buckets.BeginStage(Pass::kForward, stage);
           EXPECT_TRUE(
               parameters[parameter].master.detach().equal(Counted()[parameter].master.detach()));
           EXPECT_TRUE(parameter == 0 || !is_there(parameter - 1)) << "let go";
           buckets.EndStage(Pass::kForward, stage);
         }
         EXPECT_EQ(buckets.peak_gathered_bytes(), 2 * kBucketBytes)
             << "this stage's and the next's";
         const absl::Status dropped = buckets.ShareMasters();
         EXPECT_FALSE(is_there(2));
         return dropped;
       })) {
    EXPECT_THAT(status, IsOk());
  }
}

// Two backward passes; rank r adds r + 1 in each: 2 * (1 + 2).
TEST(ParameterBucketsTest, GradientsOfShardedParametersAddUpOverPassesAndRanksAtTheirOwner) {
  for (const absl::Status& status : OnRanks(2, [](comm::Collective& group) {
         const std::vector<NamedParameter> parameters = Counted();
         ParameterBuckets buckets(&parameters, kStages, {&group}, kSharded);
         for (int pass = 0; pass < 2; ++pass) {
           for (size_t stage = 0; stage < 3; ++stage) {
             buckets.BeginStage(Pass::kBackward, stage);
             const NamedParameter& parameter = parameters[2 - stage];
             EXPECT_EQ(Element(GradientOf(parameter), 39), 0) << "begins at zero";
             GradientOf(parameter).add_(static_cast<float>(group.rank() + 1));
             buckets.EndStage(Pass::kBackward, stage);
           }
         }
         const absl::Status finished = buckets.FinishGradients();
         const std::vector<at::Tensor> own = buckets.OwnGradients();
         EXPECT_EQ(own.size(), 3u);
         for (const at::Tensor& gradient : own) {
           EXPECT_TRUE(gradient.equal(at::full({gradient.numel()}, 6.0f)));
         }
         EXPECT_EQ(parameters[0].master.grad().storage().nbytes(), 0u);
         EXPECT_LE(buckets.peak_gathered_bytes(), 4 * kBucketBytes);
         return finished;
       })) {
    EXPECT_THAT(status, IsOk());
  }
}

TEST(ParameterBucketsTest, AnOwnersChangeIsWhatAllGatherNext) {
  for (const absl::Status& status : OnRanks(2, [](comm::Collective& group) {
         const std::vector<NamedParameter> parameters = Counted();
         ParameterBuckets buckets(&parameters, kStages, {&group}, kSharded);
         buckets.BeginStage(Pass::kForward, 1);
         for (const at::Tensor& own : buckets.OwnMasters()) own.add_(0.5);
         if (absl::Status shared = buckets.ShareMasters(); !shared.ok()) return shared;
         buckets.BeginStage(Pass::kForward, 1);
         EXPECT_TRUE(parameters[1].master.detach().equal(Counted()[1].master.detach().add(0.5)));
         buckets.Load(1, at::full({4, 10}, 7.0f));
         buckets.BeginStage(Pass::kForward, 1);
         EXPECT_TRUE(parameters[1].master.detach().equal(at::full({4, 10}, 7.0f)));
         return buckets.ShareMasters();
       })) {
    EXPECT_THAT(status, IsOk());
  }
}

// A head that is tied to the embedding: parameter 0 in the first and the last stage.
TEST(ParameterBucketsTest, AParameterOfTwoStagesGetsBothGradients) {
  const std::vector<std::vector<size_t>> tied = {{2, 0}, {1}, {0}};
  for (const absl::Status& status : OnRanks(2, [&](comm::Collective& group) {
         const std::vector<NamedParameter> parameters = Counted();
         ParameterBuckets buckets(&parameters, tied, {&group}, kSharded);
         for (size_t stage = 0; stage < 3; ++stage) {
           buckets.BeginStage(Pass::kBackward, stage);
           for (const size_t i : tied[stage]) GradientOf(parameters[i]).add_(1);
           buckets.EndStage(Pass::kBackward, stage);
         }
         const absl::Status finished = buckets.FinishGradients();
         for (size_t s = 0; s < buckets.own_slices().size(); ++s) {
           const float want = buckets.own_slices()[s].parameter == 0 ? 4 : 2;
           EXPECT_EQ(Element(buckets.OwnGradients()[s], 0), want);
         }
         return finished;
       })) {
    EXPECT_THAT(status, IsOk());
  }
}

// On a device parameters go over NCCL, and host tensors cannot: here both are Gloo, and one of them
// is called off.
TEST(ParameterBucketsTest, ParametersGoOverTheirGroupAndValuesOverTheOther) {
  for (const BucketOptions& options : {BucketOptions{.bucket_bytes = 64}, kSharded}) {
    for (const absl::Status& status : OnRanks(2, 2, [&](const testing::Collectives& groups) {
           const std::vector<NamedParameter> parameters = Counted();
           ParameterBuckets buckets(&parameters, kStages,
                                    {.values = groups[0].get(), .parameters = groups[1].get()},
                                    options);
           const auto moved = [&] {
             const absl::Status shared = buckets.ShareMasters();
             buckets.BeginStage(Pass::kForward, 1);
             return shared.ok() ? buckets.failure() : shared;
           };
           const auto collected = [&] {
             std::vector<at::Tensor> own;
             const std::vector<at::Tensor> masters = buckets.OwnMasters();
             for (size_t s = 0; s < masters.size(); ++s) {
               if (buckets.own_slices()[s].parameter == 1) own.push_back(masters[s]);
             }
             return buckets.Collect(1, own);
           };
           const auto whole = collected();
           if (!whole.ok()) return whole.status();
           if (groups[0]->rank() == 0) {
             EXPECT_TRUE(whole->equal(Counted()[1].master.detach().view(-1)));
           }
           if (absl::Status met = groups[1]->AllReduce(at::zeros({1})); !met.ok()) return met;
           groups[0]->Abort("values");
           EXPECT_THAT(collected(), FailsWith(absl::StatusCode::kAborted, "values"));
           EXPECT_THAT(moved(), IsOk());
           if (absl::Status met = groups[1]->AllReduce(at::zeros({1})); !met.ok()) return met;
           groups[1]->Abort("parameters");
           EXPECT_THAT(moved(), FailsWith(absl::StatusCode::kAborted, "parameters"));
           return absl::OkStatus();
         })) {
      EXPECT_THAT(status, IsOk());
    }
  }
}

// 3 parameters of 40 floats; on two ranks a bucket of 64 bytes holds one of them and padding to 64.
TEST(ParameterBucketsTest, CountsWhatIsHeldForGood) {
  const std::vector<NamedParameter> alone = Counted();
  const ParameterBuckets of_one(&alone, kStages, {}, {});
  EXPECT_EQ(of_one.master_bytes(), 3 * 40 * 4);
  EXPECT_EQ(of_one.gradient_bytes(), 0);
  GradientOf(alone[1]) = at::full({4, 10}, 1.0f);
  EXPECT_EQ(of_one.gradient_bytes(), 40 * 4);
  for (const absl::Status& status : OnRanks(2, [&](comm::Collective& group) {
         const std::vector<NamedParameter> whole = Counted(), parts = Counted();
         const ParameterBuckets replicated(&whole, kStages, {&group}, {.bucket_bytes = 64});
         const ParameterBuckets sharded(&parts, kStages, {&group}, kSharded);
         EXPECT_EQ(replicated.master_bytes(), 3 * kBucketBytes);
         EXPECT_EQ(replicated.gradient_bytes(), 3 * kBucketBytes);
         EXPECT_EQ(sharded.master_bytes(), 3 * kBucketBytes / 2);
         EXPECT_EQ(sharded.gradient_bytes(), 3 * kBucketBytes / 2);
         return absl::OkStatus();
       })) {
    EXPECT_THAT(status, IsOk());
  }
}

}  // namespace
}  // namespace tandem::trainer
