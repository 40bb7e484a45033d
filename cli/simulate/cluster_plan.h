// What a model on a split of GPUs costs, from constants: the roofline of decoding, the train step
// with its gradient sums, the weight push, and whether it fits the memory. Used by sweep.cc. Pure.
//
// Formulas. N parameters, L layers, E hidden, K kv heads, D head size, R trainer GPUs, T GPUs a
// server.
//   decode step of B completions that read C tokens of KV:
//     max(2N / (T bw), 2NB / (T flops)) + 4LKD C / (T bw) + overhead + 2L all-reduces of 2BE bytes
//   train step: 6N per packed token, 12LE (H D / E) per token and token before it, over R mfu
//   flops; a
//     rank gets its share of the tokens, but a completion stays whole
//   sums, ZeRO-1: 4N reduce-scatter + 4N all-gather; fully sharded: 2N + 2N all-gather and 4N
//     reduce-scatter per microbatch; each (R-1)/R of its bytes over the link
//   push: from one trainer GPU's port, 2N bytes or a delta; once by the collective, once a server
//   by the
//     stream
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "cli/simulate/constants.h"
#include "cli/simulate/lengths.h"
#include "cli/simulate/pair_model.h"

namespace tandem::simulate {

struct ModelShape {
  std::string name;
  double parameters = 0;
  int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int64_t tensor_parallel = 1;  // GPUs a server: the least that leaves room for KV

  double kv_bytes_per_token() const;  // bf16
};
// "7b" (Qwen2.5-7B) or "70b" (Llama-3.1-70B), shapes from the config.json their makers publish.
//   INVALID_ARGUMENT  another name
absl::StatusOr<ModelShape> NamedShape(const std::string& name);

struct Workload {
  int64_t prompts = 512, group = 16, prompt_tokens = 512;
  std::string lengths = "lognormal:3000:0.8:16384";
  int64_t max_staleness = 1;
  int64_t steps = 6;  // after the S + 1 that fill the pipe
  uint64_t seed = 1;
  bool stream = false;  // weights by the stream, not the collective
  bool delta = true;
};

enum class Sharding { kZero1, kFull };

struct ClusterPlan {
  PairPlan pair;
  Sharding sharding = Sharding::kZero1;  // what fits: ZeRO-1 where it does
  double trainer_bytes = 0;              // of memory a trainer GPU needs
};

// `rollout_gpus` is a multiple of shape.tensor_parallel.
//   INVALID_ARGUMENT     no trainer or no whole server; lengths that do not parse
//   RESOURCE_EXHAUSTED   it does not fit the GPUs' memory (which side, how much)
absl::StatusOr<ClusterPlan> PlanCluster(const ModelShape& shape, int64_t trainer_gpus,
                                        int64_t rollout_gpus, const Workload& workload,
                                        const Constants& constants);

// Bytes a second through which R GPUs reduce or gather: NVLink in one node; across nodes every
// GPU's port carries a part, and NVLink still bounds it.
double LinkBytesPerSecond(int64_t gpus, const Constants& constants);

}  // namespace tandem::simulate
