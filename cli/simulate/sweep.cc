#include "cli/simulate/sweep.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/statistics/sample_statistics.h"
#include "nlohmann/json.hpp"

namespace tandem::simulate {
namespace {

// What takes longest in a step of the steady state.
std::string Binds(const StepTimes& step, const ServerSpeed& server) {
  const double alone = static_cast<double>(step.sampled.longest) * server.StepSeconds(1);
  const double period = step.period();
  if (step.rollout > 0.05 * period && step.rollout >= step.push) {
    return alone > 0.7 * period ? "one long completion" : "decode";
  }
  if (step.alone.push() > step.train) return "push";
  return step.alone.reduce > step.alone.compute ? "gradient sums" : "train";
}

nlohmann::ordered_json Json(const SplitResult& r) {
  return {{"trainer_gpus", r.trainer_gpus},
          {"rollout_gpus", r.rollout_gpus},
          {"prompts", r.prompts},
          {"sharding", r.sharding == Sharding::kZero1 ? "zero1" : "full"},
          {"tokens_per_second", r.tokens_per_second},
          {"step_seconds", r.step.period()},
          {"wait_seconds", r.step.rollout},
          {"compute_seconds", r.step.alone.compute},
          {"reduce_seconds", r.step.alone.reduce},
          {"push_seconds", r.step.push},
          {"staleness", r.step.mean_staleness},
          {"trainer_share", r.trainer_share},
          {"rollout_share", r.rollout_share},
          {"useful_share", r.useful_share},
          {"flops_share", r.flops_share},
          {"mean_batch", r.mean_batch},
          {"binds", r.binds}};
}

}  // namespace

absl::StatusOr<SplitResult> RunSplit(const ModelShape& shape, int64_t trainer_gpus,
                                     int64_t rollout_gpus, const Workload& workload,
                                     const Constants& constants) {
  TANDEM_ASSIGN_OR_RETURN(const ClusterPlan plan,
                          PlanCluster(shape, trainer_gpus, rollout_gpus, workload, constants));
  TANDEM_ASSIGN_OR_RETURN(const PairResult run, SimulatePair(plan.pair));
  SplitResult out;
  out.trainer_gpus = trainer_gpus;
  out.rollout_gpus = rollout_gpus;
  out.sharding = plan.sharding;
  out.prompts = workload.prompts;
  // The pipeline fills during the first S + 1 steps.
  out.step = MeanOf(run, static_cast<size_t>(workload.max_staleness) + 1);
  const double period = out.step.period();
  const auto tokens = static_cast<double>(out.step.sampled.tokens);
  out.tokens_per_second = tokens / period;
  out.trainer_share = out.step.alone.compute / period;
  out.rollout_share = offpolicy::Mean(run.server_busy_seconds) / run.seconds;
  const auto gpus = static_cast<double>(trainer_gpus + rollout_gpus);
  out.useful_share = (static_cast<double>(trainer_gpus) * out.trainer_share +
                      static_cast<double>(rollout_gpus) * out.rollout_share) /
                     gpus;
  out.flops_share = (6 * shape.parameters * static_cast<double>(out.step.sampled.packed_tokens) +
                     2 * shape.parameters * tokens) /
                    (gpus * constants["device_flops"] * period);
  out.mean_batch = offpolicy::Mean(run.server_mean_batch);
  out.binds = Binds(out.step, plan.pair.server);
  return out;
}

std::vector<int64_t> TrainerSizes(const ModelShape& shape, int64_t gpus) {
  std::vector<int64_t> sizes;
  const int64_t unit = std::max({int64_t{1}, gpus / 16, shape.tensor_parallel});
  for (int64_t trainer = unit; trainer < gpus; trainer += unit) {
    if ((gpus - trainer) % shape.tensor_parallel == 0) sizes.push_back(trainer);
  }
  return sizes;
}

const SplitResult* SizeResult::best() const {
  const SplitResult* best = nullptr;
  for (const SplitResult& split : splits) {
    if (best == nullptr || split.tokens_per_second > 1.01 * best->tokens_per_second) best = &split;
  }
  return best;
}

absl::StatusOr<SizeResult> RunSize(const ModelShape& shape, int64_t gpus, const Workload& workload,
                                   const Constants& constants) {
  SizeResult out{.gpus = gpus};
  for (const int64_t trainer : TrainerSizes(shape, gpus)) {
    auto split = RunSplit(shape, trainer, gpus - trainer, workload, constants);
    if (split.status().code() == absl::StatusCode::kResourceExhausted) {
      out.reason = std::string(split.status().message());
      continue;
    }
    TANDEM_RETURN_IF_ERROR(split.status());
    out.splits.push_back(*std::move(split));
  }
  if (out.splits.empty() && out.reason.empty()) {
    out.reason =
        absl::StrCat("no room for a trainer and a server of ", shape.tensor_parallel, " GPUs");
  }
  return out;
}

double SizeResult::most_tokens_per_second() const {
  double most = 0;
  for (const SplitResult& split : splits) most = std::max(most, split.tokens_per_second);
  return most;
}

absl::StatusOr<std::vector<RangeEffect>> RunRanges(const ModelShape& shape, int64_t gpus,
                                                   const Workload& workload,
                                                   const Constants& constants) {
  TANDEM_ASSIGN_OR_RETURN(const SizeResult now, RunSize(shape, gpus, workload, constants));
  std::vector<RangeEffect> effects;
  if (now.best() == nullptr) return effects;
  const auto at = [&](const Constant& constant, double value) -> absl::StatusOr<double> {
    Constants other = constants;
    other.Set(constant.name, value);
    TANDEM_ASSIGN_OR_RETURN(const SizeResult then, RunSize(shape, gpus, workload, other));
    return then.most_tokens_per_second() / now.most_tokens_per_second();
  };
  for (const Constant& constant : constants.table()) {
    if (constant.high <= 0) continue;
    RangeEffect effect{constant.name, constant.low, constant.high};
    TANDEM_ASSIGN_OR_RETURN(effect.at_low, at(constant, constant.low));
    TANDEM_ASSIGN_OR_RETURN(effect.at_high, at(constant, constant.high));
    effects.push_back(effect);
  }
  const auto size = [](const RangeEffect& e) {
    return std::max(e.at_low, e.at_high) - std::min({e.at_low, e.at_high, 1.0});
  };
  std::ranges::stable_sort(effects, std::greater<>(), size);
  return effects;
}

std::string ToText(const ModelShape& shape, const std::vector<SizeResult>& sizes) {
  std::string out = absl::StrFormat(
      "%s, %d GPUs a server: simulated, nothing of this was run\n%6s %9s %7s %9s %8s %8s %8s %8s "
      "%8s "
      "%7s %7s %7s %6s  %s\n",
      shape.name, shape.tensor_parallel, "GPUs", "T:R", "shards", "tok/s", "step s", "wait s",
      "train s", "sums s", "push s", "useful", "FLOPs", "stale", "batch", "binds");
  for (const SizeResult& size : sizes) {
    if (size.best() == nullptr) {
      absl::StrAppendFormat(&out, "%6d  does not fit: %s\n", size.gpus, size.reason);
      continue;
    }
    const SplitResult& r = *size.best();
    absl::StrAppendFormat(
        &out, "%6d %9s %7s %9.0f %8.1f %8.1f %8.1f %8.2f %8.2f %6.0f%% %6.1f%% %7.2f %6.0f  %s\n",
        size.gpus, absl::StrCat(r.trainer_gpus, ":", r.rollout_gpus),
        r.sharding == Sharding::kZero1 ? "zero1" : "full", r.tokens_per_second, r.step.period(),
        r.step.rollout, r.step.alone.compute, r.step.alone.reduce, r.step.push,
        100 * r.useful_share, 100 * r.flops_share, r.step.mean_staleness, r.mean_batch, r.binds);
  }
  return out;
}

std::string ToText(const std::vector<RangeEffect>& effects) {
  std::string out = absl::StrFormat("%-34s %10s %10s %9s %9s\n", "constant", "low", "high",
                                    "tok/s at", "tok/s at");
  for (const RangeEffect& e : effects) {
    absl::StrAppendFormat(&out, "%-34s %10.3g %10.3g %8.2fx %8.2fx\n", e.name, e.low, e.high,
                          e.at_low, e.at_high);
  }
  return out;
}

std::string ToJson(const ModelShape& shape, const Workload& workload,
                   const std::vector<SizeResult>& sizes, const std::vector<RangeEffect>& effects) {
  nlohmann::ordered_json out = {{"model", shape.name},
                                {"simulated", true},
                                {"group", workload.group},
                                {"lengths", workload.lengths},
                                {"max_staleness", workload.max_staleness},
                                {"seed", workload.seed},
                                {"sizes", nlohmann::ordered_json::array()}};
  for (const SizeResult& size : sizes) {
    nlohmann::ordered_json one = {{"gpus", size.gpus}, {"reason", size.reason}};
    one["splits"] = nlohmann::ordered_json::array();
    for (const SplitResult& split : size.splits) one["splits"].push_back(Json(split));
    if (size.best() != nullptr) one["best"] = Json(*size.best());
    out["sizes"].push_back(std::move(one));
  }
  for (const RangeEffect& e : effects) {
    out["ranges"].push_back({{"name", e.name},
                             {"low", e.low},
                             {"high", e.high},
                             {"at_low", e.at_low},
                             {"at_high", e.at_high}});
  }
  return out.dump(1) + "\n";
}

}  // namespace tandem::simulate
