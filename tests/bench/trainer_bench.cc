// trainer_bench: tokens per second of the policy's forward and backward pass. trainer_bench.py runs
// it beside transformers on the same tokens.
//
//   trainer_bench MODEL_DIR fp32|bf16[+exact][+checkpointed] NUM_SEQUENCES TOKENS_EACH REPEATS
//                 [packed PROMPT_TOKENS]
//
// Without `packed` every sequence stands on its own; with it they share a prompt of that many
// tokens. `+exact` times numerics exact too, in turn with fast; `+checkpointed` keeps only the
// inputs of layers between the passes.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "common/model/model_config.h"
#include "common/model/numerics.h"
#include "common/model/safetensors.h"
#include "common/process/libtorch_program.h"
#include "common/process/memory.h"
#include "trainer/experience/packed_rows.h"
#include "trainer/policy/policy.h"

namespace tandem::trainer {
namespace {

struct Arguments {
  std::string model;
  tandem::ComputeDType dtype = tandem::ComputeDType::kFp32;
  bool with_exact = false, checkpointed = false;
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

// One mode of the policy and its best times.
struct Contender {
  Numerics numerics = Numerics::kFast;
  std::unique_ptr<Policy> policy;
  double forward = 1e30, both = 1e30;
};

void Time(Contender& contender, const PackedRow& row, bool warm) {
  const double start = Seconds();
  const TokenScores scores = contender.policy->Score(row, 1.0, /*with_gradient=*/true).value();
  const double scored = Seconds();
  scores.logprobs.sum().backward();
  const double end = Seconds();
  if (!warm) return;  // casts, gradient buffers
  contender.forward = std::min(contender.forward, scored - start);
  contender.both = std::min(contender.both, end - start);
}

int Run(const Arguments& arguments) {
  const ModelConfig config = ReadModelConfig(arguments.model).value();
  const auto tensors = MatchModelTensors(config, ReadModelTensors(arguments.model).value()).value();
  std::vector<Contender> contenders(arguments.with_exact ? 2 : 1);
  if (arguments.with_exact) contenders[1].numerics = Numerics::kExact;
  for (Contender& one : contenders) {
    one.policy =
        Policy::Create(config, tensors, arguments.dtype, /*trainable=*/true, one.numerics).value();
    one.policy->CheckpointActivations(arguments.checkpointed);
  }
  const PackedRow row = MakeRow(arguments, config.vocab_size);
  for (int64_t i = 0; i <= arguments.repeats; ++i) {
    for (Contender& one : contenders) Time(one, row, i > 0);
  }
  const auto tokens = static_cast<double>(arguments.num_sequences * arguments.tokens_each);
  std::printf(
      "{\"tokens\":%.0f,\"packed_tokens\":%lld,\"forward_s\":%.6f,\"total_s\":%.6f,"
      "\"tokens_per_s\":%.2f,\"peak_bytes\":%lld",
      tokens, static_cast<long long>(row.num_tokens()), contenders[0].forward, contenders[0].both,
      tokens / contenders[0].both, static_cast<long long>(PeakMemoryBytes()));
  if (arguments.with_exact) {
    std::printf(",\"exact_forward_s\":%.6f,\"exact_total_s\":%.6f,\"exact_over_fast\":%.3f",
                contenders[1].forward, contenders[1].both, contenders[1].both / contenders[0].both);
  }
  std::printf("}\n");
  return 0;
}

}  // namespace
}  // namespace tandem::trainer

int main(int argc, char** argv) {
  tandem::EnsurePassiveThreads(argc, argv, environ);
  tandem::KeepFreedMemory();
  if (argc != 6 && argc != 8) {
    std::fprintf(
        stderr,
        "trainer_bench MODEL_DIR fp32|bf16[+exact][+checkpointed] NUM_SEQUENCES TOKENS_EACH "
        "REPEATS [packed PROMPT_TOKENS]\n");
    return 2;
  }
  tandem::trainer::Arguments arguments;
  arguments.model = argv[1];
  const std::string dtype = argv[2];
  arguments.with_exact = dtype.find("+exact") != std::string::npos;
  arguments.checkpointed = dtype.find("+checkpointed") != std::string::npos;
  arguments.dtype =
      dtype.starts_with("bf16") ? tandem::ComputeDType::kBf16 : tandem::ComputeDType::kFp32;
  arguments.num_sequences = std::stoll(argv[3]);
  arguments.tokens_each = std::stoll(argv[4]);
  arguments.repeats = std::stoll(argv[5]);
  if (argc == 8) arguments.prompt_tokens = std::stoll(argv[7]);
  return tandem::trainer::Run(arguments);
}
