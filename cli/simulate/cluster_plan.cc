#include "cli/simulate/cluster_plan.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"

namespace tandem::simulate {
namespace {

double Share(int64_t gpus) { return static_cast<double>(gpus - 1) / static_cast<double>(gpus); }

// Masters and gradients in fp32 (docs/scaling.md), weights to compute with in bf16, two moments.
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
  const double turn = read / per_row;  // completions from which products bind
  const auto knot = [&](double batch) {
    return ServerSpeed::Knot{batch, fixed + exchange * batch + std::max(read, per_row * batch)};
  };
  ServerSpeed speed;
  speed.knots = {knot(1), knot(turn), knot(2 * turn)};
  speed.seconds_per_context_token = shape.kv_bytes_per_token() / bandwidth;
  speed.prefill_tokens_per_second =
      gpus * c["device_flops"] * c["prefill_fraction"] / (2 * shape.parameters);
  // Live weights and the staged ones of a push.
  const double room = gpus * c["hbm_bytes"] * c["usable_memory_fraction"] - 4 * shape.parameters;
  speed.kv_tokens = static_cast<int64_t>(std::max(0.0, room) / shape.kv_bytes_per_token());
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
  // A token attends to half its completion and the prompt, on the mean.
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
    // ZeRO-1 sums during the last microbatch's backward pass; sharded layers are fetched all along.
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
  return absl::InvalidArgumentError(absl::StrCat("no model ", name, ", want 7b or 70b"));
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
    return absl::InvalidArgumentError(absl::StrCat(
        "split ", trainer_gpus, ":", rollout_gpus, ": want a trainer GPU and a multiple of ",
        shape.tensor_parallel, " rollout GPUs (GPUs a server of ", shape.name, ")"));
  }
  TANDEM_ASSIGN_OR_RETURN(const LengthDistribution lengths,
                          LengthDistribution::Parse(workload.lengths));
  ClusterPlan plan;
  const double room = constants["hbm_bytes"] * constants["usable_memory_fraction"];
  for (const Sharding sharding : {Sharding::kZero1, Sharding::kFull}) {
    plan.sharding = sharding;
    plan.trainer_bytes = TrainerBytes(shape, trainer_gpus, sharding, constants);
    if (plan.trainer_bytes <= room) break;
  }
  if (plan.trainer_bytes > room) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%s on %d trainer GPUs needs %.0f GB of each, of %.0f", shape.name,
                        trainer_gpus, plan.trainer_bytes / 1e9, room / 1e9));
  }
  PairPlan& pair = plan.pair;
  pair.server = Speed(shape, constants);
  if (pair.server.kv_tokens < workload.prompt_tokens + 1) {
    return absl::ResourceExhaustedError(
        absl::StrCat(shape.name, " leaves no room for KV on ", shape.tensor_parallel, " GPUs"));
  }
  pair.steps = workload.max_staleness + 1 + workload.steps;
  pair.prompts_per_step = workload.prompts;
  pair.max_staleness = workload.max_staleness;
  pair.servers = rollout_gpus / shape.tensor_parallel;
  // Enough that a server never waits for the trainer's client; KV bounds what runs.
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

}  // namespace tandem::simulate
