// The costs of a model on a split of GPUs, computed from constants: the roofline of decoding, the
// train step with its gradient sums, the weight push, and whether the model fits into memory.
// sweep.cc uses it. Pure.
//
// N parameters, L layers, E hidden size, H heads, K KV heads, D head size, R trainer GPUs, T GPUs
// per server, bw bytes per second of a GPU's memory:
//
//   decode step     max(2N / (T bw), 2NB / (T flops)) + 4LKD C / (T bw) + overhead
//                   + 2L all-reduces of 2BE bytes, for B completions that read C tokens of KV
//   train step      (6N per packed token + 12LHD per token and token before it) / (R mfu flops);
//                   a rank gets its share of the tokens, but a completion is not divided
//   gradient sums   ZeRO-1: 4N bytes reduce-scatter + 4N all-gather; fully sharded: 2N + 2N
//                   all-gather and 4N reduce-scatter per microbatch; (R-1)/R of the bytes go over
//                   the link
//   push            2N bytes or a delta from the port of one trainer GPU, once with the collective,
//                   and once per server with the stream
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "cli/simulate/constants.h"
#include "cli/simulate/pair_model.h"

namespace tandem::simulate {

struct ModelShape {
  std::string name;
  double parameters = 0;
  int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int64_t tensor_parallel = 1;  // GPUs per server: the smallest number that leaves memory for KV

  double kv_bytes_per_token() const;  // bf16
};
// "7b" (Qwen2.5-7B) or "70b" (Llama-3.1-70B), with the shapes of their published config.json.
//   INVALID_ARGUMENT  another name
absl::StatusOr<ModelShape> NamedShape(const std::string& name);

// LengthDistribution: the numbers of tokens of completions, described by a text: fixed:N,
// uniform:LOW-HIGH, or lognormal:MEAN:SIGMA:LIMIT, where MEAN is before the cut at LIMIT and SIGMA
// is of the logarithm. Pure.
class LengthDistribution {
 public:
  //   INVALID_ARGUMENT  the text has another form, or a number is out of range
  static absl::StatusOr<LengthDistribution> Parse(const std::string& text);

  // The length of one completion, at least 1, as a function of the arguments alone.
  int64_t Draw(uint64_t seed, int64_t group, int64_t member) const;

 private:
  enum class Kind { kFixed, kUniform, kLogNormal };
  Kind kind_ = Kind::kFixed;
  double a_ = 1, b_ = 0;  // length; low and high; mu and sigma
  int64_t limit_ = 0;
};

struct Workload {
  int64_t prompts = 512, group = 16, prompt_tokens = 512;
  std::string lengths = "lognormal:3000:0.8:16384";
  int64_t max_staleness = 1;
  int64_t steps = 6;  // after the S + 1 steps that fill the pipeline
  uint64_t seed = 1;
  bool stream = false;  // push weights with the stream instead of the collective
  bool delta = true;
};

enum class Sharding { kZero1, kFull };

struct ClusterPlan {
  PairPlan pair;
  Sharding sharding = Sharding::kZero1;  // ZeRO-1 if it fits into memory
  double trainer_bytes = 0;              // memory that a trainer GPU needs
};

// `rollout_gpus` is a multiple of shape.tensor_parallel.
//   INVALID_ARGUMENT    there is no trainer GPU or no whole server, or the lengths do not parse
//   RESOURCE_EXHAUSTED  it does not fit into the GPUs' memory (which side, how much)
absl::StatusOr<ClusterPlan> PlanCluster(const ModelShape& shape, int64_t trainer_gpus,
                                        int64_t rollout_gpus, const Workload& workload,
                                        const Constants& constants);

// The bandwidth in bytes per second with which `gpus` GPUs reduce or gather. In one node it is that
// of NVLink. Across nodes, the port of every GPU carries a part, up to the bandwidth of NVLink.
double LinkBytesPerSecond(int64_t gpus, const Constants& constants);

}  // namespace tandem::simulate
