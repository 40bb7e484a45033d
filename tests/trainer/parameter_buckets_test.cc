// Ranks that are threads of this process (rank_threads.h).
#include "trainer/parameter_buckets.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/support/status_matchers.h"
#include "tests/trainer/rank_threads.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::IsOk;
using ::tandem::testing::OnRanks;

// Three parameters; with buckets of 64 bytes each has one of its own, the last one the first.
std::vector<NamedParameter> Parameters() {
  std::vector<NamedParameter> parameters;
  for (const char* const name : {"a", "b", "c"}) {
    parameters.push_back({name, at::ones({3, 4}).requires_grad_(true)});
  }
  return parameters;
}

at::Tensor& GradientOf(const NamedParameter& parameter) { return parameter.master.mutable_grad(); }

float First(const NamedParameter& parameter) {
  return std::atomic_ref(*GradientOf(parameter).data_ptr<float>()).load();
}

// Until the gradient is `value`, which another thread makes it.
bool Becomes(const NamedParameter& parameter, float value) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (First(parameter) != value && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
  }
  return First(parameter) == value;
}

// Rank r's gradients are r + 1: their sum over two ranks is 3.
TEST(ParameterBucketsTest, SumsAreMadeWhileLaterGradientsAreStillToCome) {
  for (const absl::Status& status : OnRanks(2, [](comm::Collective& group) {
         const std::vector<NamedParameter> parameters = Parameters();
         ParameterBuckets buckets(&parameters, &group, 64);
         const auto own = static_cast<float>(group.rank() + 1);
         GradientOf(parameters[2]).fill_(own);
         buckets.GradientIsComplete(2);
         EXPECT_TRUE(Becomes(parameters[2], 3));
         // What comes afterwards is not in the sum that was begun, and is in its own.
         GradientOf(parameters[1]).fill_(own);
         GradientOf(parameters[0]).fill_(10 * own);
         const absl::Status finished = buckets.FinishGradients();
         EXPECT_EQ(First(parameters[2]), 3);
         EXPECT_EQ(First(parameters[1]), 3);
         EXPECT_EQ(First(parameters[0]), 30);
         return finished;
       })) {
    EXPECT_THAT(status, IsOk());
  }
}

// The order in which gradients are completed is not that of the buckets on one rank, and the other
// completes none.
TEST(ParameterBucketsTest, BucketsAreSummedInOneOrderWhateverTheOrderOfGradients) {
  for (const absl::Status& status : OnRanks(2, [](comm::Collective& group) {
         const std::vector<NamedParameter> parameters = Parameters();
         ParameterBuckets buckets(&parameters, &group, 64);
         for (int update = 1; update <= 3; ++update) {
           for (size_t i = 0; i < 3; ++i) {
             GradientOf(parameters[i]).fill_(static_cast<float>(i) + 1);
             if (group.rank() == 0) buckets.GradientIsComplete(i);
           }
           if (absl::Status finished = buckets.FinishGradients(); !finished.ok()) return finished;
           for (size_t i = 0; i < 3; ++i) {
             EXPECT_EQ(First(parameters[i]), 2 * (static_cast<float>(i) + 1)) << update;
           }
         }
         return absl::OkStatus();
       })) {
    EXPECT_THAT(status, IsOk());
  }
}

TEST(ParameterBucketsTest, ARankAloneKeepsItsGradientsAsTheyAre) {
  const std::vector<NamedParameter> parameters = Parameters();
  ParameterBuckets buckets(&parameters, nullptr, 64);
  EXPECT_FALSE(GradientOf(parameters[0]).defined());
  GradientOf(parameters[0]) = at::full({3, 4}, 7.0f);
  buckets.GradientIsComplete(0);
  EXPECT_THAT(buckets.FinishGradients(), IsOk());
  EXPECT_EQ(First(parameters[0]), 7);
}

}  // namespace
}  // namespace tandem::trainer
