// gradient_sum_bench: how much of the sum of gradients over ranks the backward pass hides.
//
//   gradient_sum_bench MODEL_DIR NUM_RANKS TOKENS REPEATS
//
// Ranks are threads of this process with one kernel thread each, joined by Gloo over the loopback
// interface. Each scores and differentiates a row of TOKENS tokens; sums begin during its backward
// pass, and in turn only after it. Medians over repeats of rank 0: seconds of forward and backward
// pass, of the wait for sums after it, and of both.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/model/model_config.h"
#include "common/model/safetensors.h"
#include "common/process/libtorch_program.h"
#include "common/process/memory.h"
#include "tests/support/rank_threads.h"
#include "trainer/experience/packed_rows.h"
#include "trainer/optimizer/parameter_buckets.h"
#include "trainer/policy/policy.h"

namespace tandem::trainer {
namespace {

constexpr int64_t kBucketBytes = 25'000'000;  // TrainStepSetup's

PackedRow MakeRow(int64_t num_tokens, int64_t vocabulary) {
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < num_tokens; ++t) {
    ids.push_back(static_cast<int32_t>((t * 104729 + 17) % vocabulary));
  }
  const std::span<const int32_t> all = ids;
  const GroupTokens group{.prompt = all.first(1), .completions = {all.subspan(1)}};
  return PackRow({&group, 1}).value();
}

struct Times {
  std::vector<double> compute, wait, total;

  void Add(double start, double computed, double summed) {
    compute.push_back(computed - start);
    wait.push_back(summed - computed);
    total.push_back(summed - start);
  }
};

double Median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<int64_t>(values.size() / 2));
  return values[values.size() / 2];
}

void Print(const char* name, const Times& times) {
  std::printf("\"%s\":{\"compute_s\":%.4f,\"wait_s\":%.4f,\"total_s\":%.4f}", name,
              Median(times.compute), Median(times.wait), Median(times.total));
}

// [0]: sums after the backward pass, [1]: during it.
absl::Status Measure(comm::Collective& group, const std::string& model, int64_t num_tokens,
                     int64_t repeats, Times (&times)[2]) {
  const ModelConfig config = ReadModelConfig(model).value();
  const auto tensors = MatchModelTensors(config, ReadModelTensors(model).value()).value();
  const auto policy =
      Policy::Create(config, tensors, ComputeDType::kFp32, /*trainable=*/true).value();
  ParameterBuckets buckets(&policy->parameters(), policy->stages(), {&group},
                           {.bucket_bytes = kBucketBytes});
  const PackedRow row = MakeRow(num_tokens, config.vocab_size);
  policy->Watch({.end = [&](Pass pass, size_t stage) { buckets.EndStage(pass, stage); }});
  for (int64_t i = 0; i < 2 * (repeats + 1); ++i) {
    const bool during = i % 2 == 1;
    if (during) buckets.ExpectLastPass();
    if (absl::Status met = group.AllReduce(at::zeros({1})); !met.ok()) return met;
    const double start = MonotonicSeconds();
    policy->Score(row, 1.0, /*with_gradient=*/true)->logprobs.sum().backward();
    const double computed = MonotonicSeconds();
    if (absl::Status summed = buckets.FinishGradients(); !summed.ok()) return summed;
    if (i >= 2) times[during].Add(start, computed, MonotonicSeconds());
  }
  return absl::OkStatus();
}

int Run(const std::string& model, int num_ranks, int64_t num_tokens, int64_t repeats) {
  at::set_num_threads(1);
  Times times[2];
  const auto statuses = testing::OnRanks(num_ranks, [&](comm::Collective& group) {
    Times others[2];
    return Measure(group, model, num_tokens, repeats, group.rank() == 0 ? times : others);
  });
  for (const absl::Status& status : statuses) {
    if (status.ok()) continue;
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  std::printf("{\"ranks\":%d,\"tokens\":%lld,", num_ranks, static_cast<long long>(num_tokens));
  Print("after", times[0]);
  std::printf(",");
  Print("during", times[1]);
  std::printf(",\"hidden_share\":%.3f}\n", 1 - Median(times[1].wait) / Median(times[0].wait));
  return 0;
}

}  // namespace
}  // namespace tandem::trainer

int main(int argc, char** argv) {
  tandem::EnsurePassiveThreads(argc, argv, environ);
  tandem::KeepFreedMemory();
  if (argc != 5) {
    std::fprintf(stderr, "gradient_sum_bench MODEL_DIR NUM_RANKS TOKENS REPEATS\n");
    return 2;
  }
  return tandem::trainer::Run(argv[1], std::stoi(argv[2]), std::stoll(argv[3]),
                              std::stoll(argv[4]));
}
