// sampler_bench: what log-probs, entropy and second moment cost of a decode step.
//
//   sampler_bench MODEL_DIR [REPEATS [WEIGHTS]]
//
// A step of 32 completions runs in the engine in bf16, or with WEIGHTS (int8, fp8_e4m3, int4_group);
// then as many rows of logits go through the pass that the sampler makes over them, with everything
// recorded and with what a draw alone needs, in turn and in changing order. Prints one JSON object;
// the extra work is spread over the step's threads, as there.
#include <algorithm>
#include <cstdio>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/matrix/weight_format.h"
#include "common/model/token_distribution.h"
#include "common/tensor/instruction_set.h"
#include "rollout_server/engine/engine.h"

namespace tandem::rollout {
namespace {

constexpr int kRows = 32;

struct Rows {
  std::vector<std::vector<float>> logits;
  std::vector<float> exps;
  std::vector<double> block_mass;
};

Rows MakeRows(int64_t vocabulary) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 3);
  Rows rows;
  for (int r = 0; r < kRows; ++r) {
    for (float& x : rows.logits.emplace_back(vocabulary)) x = normal(random);
  }
  rows.exps.resize(vocabulary);
  rows.block_mass.resize(NumDistributionBlocks(vocabulary));
  return rows;
}

// Seconds of the sampler's pass over all rows on one thread.
double PassSeconds(Rows& rows, bool recorded, double& sink) {
  const double begin = MonotonicSeconds();
  for (const std::vector<float>& logits : rows.logits) {
    const InstructionSet set = ActiveInstructionSet();
    if (recorded) {
      const TokenDistribution d =
          DistributionOf(set, logits, 1.0f, rows.exps.data(), rows.block_mass.data());
      sink += d.LogProb(logits[0]) + d.entropy() + d.second_moment();
    } else {
      sink += MassOf(set, logits, 1.0f, rows.exps.data(), rows.block_mass.data()).mass;
    }
  }
  return MonotonicSeconds() - begin;
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

int Main(const std::string& model, int repeats, WeightScheme weights) {
  EngineOptions options;
  options.dtype = ComputeDType::kBf16;
  options.quantised.weights = weights;
  options.kv_capacity_tokens = kRows * (64 + repeats + 32);
  auto engine = Engine::Create(model, options);
  if (!engine.ok()) {
    std::fprintf(stderr, "sampler_bench: %s\n", std::string(engine.status().message()).c_str());
    return 1;
  }
  for (int g = 0; g < kRows / 8; ++g) {
    GroupRequest request;
    request.key = g;
    for (int t = 0; t < 64; ++t) request.prompt.push_back(100 + (g * 64 + t) % 1000);
    request.num_completions = 8;
    request.sampling.max_new_tokens = repeats + 8;
    request.sampling.ignore_eos = true;
    if (const auto added = (*engine)->Add(std::move(request)); !added.ok()) {
      std::fprintf(stderr, "sampler_bench: %s\n", std::string(added.message()).c_str());
      return 1;
    }
  }
  Rows rows = MakeRows((*engine)->config().vocab_size);
  const double threads = std::max(1u, std::thread::hardware_concurrency());
  std::vector<double> steps, with, without, shares;
  double sink = 0;
  for (int i = -4; i < repeats; ++i) {  // the first are the prompts and a warm-up
    const double begin = MonotonicSeconds();
    if (const auto step = (*engine)->Step(); !step.ok()) return 1;
    const double step_seconds = MonotonicSeconds() - begin;
    double seconds[2];
    for (const bool recorded : {i % 2 == 0, i % 2 != 0}) {
      seconds[recorded] = PassSeconds(rows, recorded, sink);
    }
    if (i < 0) continue;
    steps.push_back(step_seconds);
    with.push_back(seconds[1]);
    without.push_back(seconds[0]);
    shares.push_back((seconds[1] - seconds[0]) / threads / step_seconds);
  }
  std::sort(shares.begin(), shares.end());
  std::printf(
      "{\"benchmark\": \"sampler\", \"rows\": %d, \"step_ms\": %.3f, \"recorded_ms\": %.3f, "
      "\"draw_only_ms\": %.3f, \"share_of_step\": {\"median\": %.5f, \"p10\": %.5f, \"p90\": "
      "%.5f}, "
      "\"checksum\": %g}\n",
      kRows, Median(steps) * 1e3, Median(with) * 1e3, Median(without) * 1e3,
      shares[shares.size() / 2], shares[shares.size() / 10], shares[shares.size() * 9 / 10], sink);
  return 0;
}

}  // namespace
}  // namespace tandem::rollout

int main(int argc, char** argv) {
  const auto& names = tandem::kWeightSchemeNames;
  const auto weights = std::find(std::begin(names), std::end(names), argc > 3 ? argv[3] : "wide");
  if (argc < 2 || weights == std::end(names)) {
    std::fprintf(stderr, "usage: sampler_bench MODEL_DIR [REPEATS [WEIGHTS]]\n");
    return 2;
  }
  return tandem::rollout::Main(argv[1], argc > 2 ? std::atoi(argv[2]) : 100,
                               static_cast<tandem::WeightScheme>(weights - std::begin(names)));
}
