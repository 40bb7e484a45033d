// trainer_bench: tokens per second of the policy's forward and backward pass. trainer_bench.py runs
// it beside transformers on the same tokens.
//
//   trainer_bench MODEL_DIR fp32|bf16 NUM_SEQUENCES TOKENS_EACH REPEATS [packed PROMPT_TOKENS]
//
// Without `packed` every sequence stands on its own; with it they share a prompt of that many
// tokens.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "common/base/passive_threads.h"
#include "common/model/model_config.h"
#include "common/model/safetensors.h"
#include "trainer/packed_rows.h"
#include "trainer/policy.h"

namespace tandem::trainer {
namespace {

struct Arguments {
  std::string model;
  ComputeDType dtype = ComputeDType::kFp32;
  int64_t num_sequences = 8, tokens_each = 64, repeats = 3, prompt_tokens = 0;
};

// Ids of sequence i: the same formula as in trainer_bench.py.
std::vector<int32_t> SequenceIds(int64_t i, int64_t count, int64_t vocabulary) {
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < count; ++t) {
    ids.push_back(static_cast<int32_t>((i * 7919 + t * 104729 + 17) % vocabulary));
  }
  return ids;
}

PackedRow MakeRow(const Arguments& arguments, int64_t vocabulary) {
  std::vector<std::vector<int32_t>> prompts, completions;
  std::vector<GroupTokens> groups;
  const bool shared = arguments.prompt_tokens > 0;
  const int64_t prompt_tokens = shared ? arguments.prompt_tokens : 1;
  const int64_t num_prompts = shared ? 1 : arguments.num_sequences;
  for (int64_t i = 0; i < arguments.num_sequences; ++i) {
    std::vector<int32_t> ids = SequenceIds(i, arguments.tokens_each, vocabulary);
    prompts.emplace_back(ids.begin(), ids.begin() + prompt_tokens);
    completions.emplace_back(ids.begin() + prompt_tokens, ids.end());
  }
  for (int64_t p = 0; p < num_prompts; ++p) {
    GroupTokens group{.prompt = prompts[static_cast<size_t>(p)]};
    for (int64_t i = p; i < arguments.num_sequences; i += num_prompts) {
      group.completions.push_back(completions[static_cast<size_t>(i)]);
    }
    groups.push_back(group);
  }
  return PackRow(groups).value();
}

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int Run(const Arguments& arguments) {
  const ModelConfig config = ReadModelConfig(arguments.model).value();
  const auto tensors = MatchModelTensors(config, ReadModelTensors(arguments.model).value()).value();
  auto policy = Policy::Create(config, tensors, arguments.dtype, /*trainable=*/true).value();
  const PackedRow row = MakeRow(arguments, config.vocab_size);
  double best_forward = 1e30, best_both = 1e30;
  for (int64_t i = 0; i <= arguments.repeats; ++i) {
    const double start = Seconds();
    const TokenScores scores = policy->Score(row, 1.0, /*with_gradient=*/true).value();
    const double scored = Seconds();
    scores.logprobs.sum().backward();
    const double end = Seconds();
    if (i == 0) continue;  // warm-up: casts, gradient buffers
    best_forward = std::min(best_forward, scored - start);
    best_both = std::min(best_both, end - start);
  }
  const auto tokens = static_cast<double>(arguments.num_sequences * arguments.tokens_each);
  std::printf(
      "{\"tokens\":%.0f,\"packed_tokens\":%lld,\"forward_s\":%.6f,\"total_s\":%.6f,"
      "\"tokens_per_s\":%.2f}\n",
      tokens, static_cast<long long>(row.num_tokens()), best_forward, best_both,
      tokens / best_both);
  return 0;
}

}  // namespace
}  // namespace tandem::trainer

int main(int argc, char** argv) {
  tandem::EnsurePassiveThreads(argc, argv);
  if (argc != 6 && argc != 8) {
    std::fprintf(stderr,
                 "trainer_bench MODEL_DIR fp32|bf16 NUM_SEQUENCES TOKENS_EACH REPEATS "
                 "[packed PROMPT_TOKENS]\n");
    return 2;
  }
  tandem::trainer::Arguments arguments;
  arguments.model = argv[1];
  arguments.dtype = std::string(argv[2]) == "bf16" ? tandem::trainer::ComputeDType::kBf16
                                                   : tandem::trainer::ComputeDType::kFp32;
  arguments.num_sequences = std::stoll(argv[3]);
  arguments.tokens_each = std::stoll(argv[4]);
  arguments.repeats = std::stoll(argv[5]);
  if (argc == 8) arguments.prompt_tokens = std::stoll(argv[7]);
  return tandem::trainer::Run(arguments);
}
