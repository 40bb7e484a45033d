#include "cli/simulate/cluster_plan.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "rollout_server/engine/sampling/philox.h"

namespace tandem::simulate {
namespace {

double Share(int64_t gpus) { return static_cast<double>(gpus - 1) / static_cast<double>(gpus); }

// fp32 masters and gradients (docs/scaling.md), bf16 weights for the computation, and two fp32
// moments.
double TrainerBytes(const ModelShape& shape, int64_t gpus, Sharding sharding, const Constants& c) {
  const auto ranks = static_cast<double>(gpus);
  const double state =
      sharding == Sharding::kZero1 ? 4 + 4 + 2 + 8 / ranks : (4 + 4 + 2 + 8) / ranks;
  return shape.parameters * state + c["activation_bytes"];
}

ServerSpeed Speed(const ModelShape& shape, const Constants& c) {
  const auto gpus = static_cast<double>(shape.tensor_parallel);
  const auto layers = static_cast<double>(shape.layers);
  const double bandwidth = gpus * c["hbm_bytes_per_second"] * c["hbm_fraction"];
  const double flops = gpus * c["device_flops"] * c["decode_fraction"];
  const double read = 2 * shape.parameters / bandwidth;
  const double per_row = 2 * shape.parameters / flops;
  double fixed = c["step_overhead_seconds"], exchange = 0;
  if (shape.tensor_parallel > 1) {
    fixed += 2 * layers * c["tensor_parallel_latency_seconds"];
    exchange = 2 * layers * 2 * Share(shape.tensor_parallel) * 2 *
               static_cast<double>(shape.hidden) /
               (c["nvlink_bytes_per_second"] * c["link_fraction"]);
  }
  const double turn = read / per_row;  // with more completions, products take longer than reads
  const auto knot = [&](double batch) {
    return ServerSpeed::Knot{batch, fixed + exchange * batch + std::max(read, per_row * batch)};
  };
  ServerSpeed speed;
  speed.knots = {knot(1), knot(turn), knot(2 * turn)};
  speed.seconds_per_context_token = shape.kv_bytes_per_token() / bandwidth;
  speed.prefill_tokens_per_second =
      gpus * c["device_flops"] * c["prefill_fraction"] / (2 * shape.parameters);
  // The live weights and the staged weights of a push.
  const double memory = gpus * c["hbm_bytes"] * c["usable_memory_fraction"] - 4 * shape.parameters;
  speed.kv_tokens = static_cast<int64_t>(std::max(0.0, memory) / shape.kv_bytes_per_token());
  speed.max_sequences = 1 << 20;  // KV bounds it
  return speed;
}

struct TrainCost {
  ModelShape shape;
  int64_t ranks = 1;
  Sharding sharding = Sharding::kZero1;
  int64_t servers = 1;
  Workload workload;
  Constants constants;

  TrainerSeconds operator()(int64_t step, const Sampled& sampled) const;
};

TrainerSeconds TrainCost::operator()(int64_t step, const Sampled& sampled) const {
  const Constants& c = constants;
  const auto packed = static_cast<double>(sampled.packed_tokens);
  const double share = std::max(packed / static_cast<double>(ranks),
                                static_cast<double>(sampled.longest + workload.prompt_tokens));
  // On average, a token attends to the prompt and half its completion.
  const double context = static_cast<double>(workload.prompt_tokens) +
                         static_cast<double>(sampled.tokens) /
                             static_cast<double>(workload.prompts * workload.group) / 2;
  const double attention =
      12 * static_cast<double>(shape.layers * shape.heads * shape.head_dim) * context;
  TrainerSeconds cost;
  cost.compute = share * (6 * shape.parameters + attention) / (c["device_flops"] * c["train_mfu"]);
  if (ranks > 1) {
    const double link = LinkBytesPerSecond(ranks, c);
    const double microbatches = std::ceil(share / c["microbatch_tokens"]);
    const bool full = sharding == Sharding::kFull;
    const double comm = Share(ranks) * 8 * shape.parameters * (full ? microbatches : 1) / link;
    // ZeRO-1 sums during the backward pass of the last microbatch. Sharded layers are gathered
    // throughout the step.
    const double window = full ? cost.compute : cost.compute * 2 / 3 / microbatches;
    cost.reduce = comm - std::min(comm * c["hidden_fraction"], window);
  }
  const double dense = 2 * shape.parameters;
  const bool delta = workload.delta && step > 0;
  const double wire = delta ? shape.parameters * std::min(2.0, c["delta_changed_share"] *
                                                                   c["delta_bytes_per_changed"])
                            : dense;
  const double copies = workload.stream ? static_cast<double>(servers) : 1;
  cost.prepare = dense / c["prepare_bytes_per_second"];
  cost.send = wire * copies / (c["nic_bytes_per_second"] * c["link_fraction"]);
  cost.install = dense / static_cast<double>(shape.tensor_parallel) / c["verify_bytes_per_second"];
  cost.record = c["record_seconds"];
  return cost;
}

}  // namespace

double ModelShape::kv_bytes_per_token() const {
  return static_cast<double>(2 * layers * kv_heads * head_dim * 2);
}

absl::StatusOr<ModelShape> NamedShape(const std::string& name) {
  if (name == "7b") return ModelShape{"Qwen2.5-7B", 7.616e9, 28, 3584, 28, 4, 128, 1};
  if (name == "70b") return ModelShape{"Llama-3.1-70B", 70.554e9, 80, 8192, 64, 8, 128, 8};
  return InvalidArgument("no model ", name, ", want 7b or 70b");
}

double LinkBytesPerSecond(int64_t gpus, const Constants& c) {
  const double nvlink = c["nvlink_bytes_per_second"];
  const double ports = c["nic_bytes_per_second"] * c["gpus_per_node"];
  const bool one_node = static_cast<double>(gpus) <= c["gpus_per_node"];
  return (one_node ? nvlink : std::min(nvlink, ports)) * c["link_fraction"];
}

absl::StatusOr<ClusterPlan> PlanCluster(const ModelShape& shape, int64_t trainer_gpus,
                                        int64_t rollout_gpus, const Workload& workload,
                                        const Constants& constants) {
  if (trainer_gpus < 1 || rollout_gpus < 1 || rollout_gpus % shape.tensor_parallel != 0) {
    return InvalidArgument("split ", trainer_gpus, ":", rollout_gpus,
                           ": want a trainer GPU and a multiple of ", shape.tensor_parallel,
                           " rollout GPUs (GPUs a server of ", shape.name, ")");
  }
  TANDEM_ASSIGN_OR_RETURN(const LengthDistribution lengths,
                          LengthDistribution::Parse(workload.lengths));
  ClusterPlan plan;
  const double memory = constants["hbm_bytes"] * constants["usable_memory_fraction"];
  for (const Sharding sharding : {Sharding::kZero1, Sharding::kFull}) {
    plan.sharding = sharding;
    plan.trainer_bytes = TrainerBytes(shape, trainer_gpus, sharding, constants);
    if (plan.trainer_bytes <= memory) break;
  }
  if (plan.trainer_bytes > memory) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%s on %d trainer GPUs needs %.0f GB of each, of %.0f", shape.name,
                        trainer_gpus, plan.trainer_bytes / 1e9, memory / 1e9));
  }
  PairPlan& pair = plan.pair;
  pair.server = Speed(shape, constants);
  if (pair.server.kv_tokens < workload.prompt_tokens + 1) {
    return ResourceExhausted(shape.name, " leaves no memory for KV on ", shape.tensor_parallel,
                             " GPUs");
  }
  pair.steps = workload.max_staleness + 1 + workload.steps;
  pair.prompts_per_step = workload.prompts;
  pair.max_staleness = workload.max_staleness;
  pair.servers = rollout_gpus / shape.tensor_parallel;
  // Enough that a server never waits for the trainer's client. KV limits what runs.
  pair.groups_in_flight = (workload.max_staleness + 1) * workload.prompts / pair.servers + 1;
  pair.pause_seconds = constants["pause_seconds"];
  pair.work = [workload, lengths](int64_t group) {
    GroupWork work{.prompt_tokens = workload.prompt_tokens};
    for (int64_t i = 0; i < workload.group; ++i) {
      work.lengths.push_back(lengths.Draw(workload.seed, group, i));
    }
    return work;
  };
  pair.trainer = TrainCost{shape, trainer_gpus, plan.sharding, pair.servers, workload, constants};
  return plan;
}

absl::StatusOr<LengthDistribution> LengthDistribution::Parse(const std::string& text) {
  const auto refused = [&] {
    return InvalidArgument(
        "'", text,
        "', want fixed:N, uniform:LOW-HIGH or lognormal:MEAN:SIGMA:LIMIT, lengths of 1 "
        "to 1000000 tokens");
  };
  const std::vector<std::string> parts = absl::StrSplit(text, absl::ByAnyChar(":-"));
  std::vector<double> numbers;
  for (size_t i = 1; i < parts.size(); ++i) {
    double number = 0;
    if (!absl::SimpleAtod(parts[i], &number) || !std::isfinite(number)) return refused();
    numbers.push_back(number);
  }
  const auto is_length = [](double n) { return n >= 1 && n <= 1e6; };
  LengthDistribution out;
  if (parts[0] == "fixed" && numbers.size() == 1 && is_length(numbers[0])) {
    out.a_ = numbers[0];
  } else if (parts[0] == "uniform" && numbers.size() == 2 && is_length(numbers[0]) &&
             is_length(numbers[1]) && numbers[0] <= numbers[1]) {
    out.kind_ = Kind::kUniform;
    out.a_ = numbers[0];
    out.b_ = numbers[1];
  } else if (parts[0] == "lognormal" && numbers.size() == 3 && is_length(numbers[0]) &&
             numbers[1] >= 0 && numbers[1] <= 4 && is_length(numbers[2])) {
    out.kind_ = Kind::kLogNormal;
    out.a_ = std::log(numbers[0]) - numbers[1] * numbers[1] / 2;
    out.b_ = numbers[1];
    out.limit_ = static_cast<int64_t>(numbers[2]);
  } else {
    return refused();
  }
  return out;
}

int64_t LengthDistribution::Draw(uint64_t seed, int64_t group, int64_t member) const {
  const rollout::PhiloxCounter bits =
      rollout::Philox4x32({static_cast<uint32_t>(member), static_cast<uint32_t>(group),
                           static_cast<uint32_t>(group >> 32), 0},
                          {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const double u = rollout::UniformFromBits(static_cast<uint64_t>(bits[0]) << 32 | bits[1]);
  const double v = rollout::UniformFromBits(static_cast<uint64_t>(bits[2]) << 32 | bits[3]);
  switch (kind_) {
    case Kind::kFixed:
      return static_cast<int64_t>(a_);
    case Kind::kUniform:
      return static_cast<int64_t>(a_ + u * (b_ - a_ + 1));
    case Kind::kLogNormal:
      break;
  }
  // The Box-Muller transform.
  const double normal = std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
  return std::clamp<int64_t>(std::llround(std::exp(a_ + b_ * normal)), 1, limit_);
}

}  // namespace tandem::simulate
