#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/bench/bench_train.h"
#include "cli/bench/serve_load.h"
#include "nlohmann/json.hpp"

namespace tandem::cli {
namespace {

std::vector<double> Of(const TrainResult& result, double TrainStepTimes::*field) {
  std::vector<double> values;
  for (const TrainStepTimes& step : result.steps) values.push_back(step.*field);
  return values;
}

double MeanTokens(const TrainResult& result, int64_t TrainStepTimes::*field) {
  double sum = 0;
  for (const TrainStepTimes& step : result.steps) sum += static_cast<double>(step.*field);
  return result.steps.empty() ? 0 : sum / static_cast<double>(result.steps.size());
}

// The least possible time of our training part over its median. Every row token goes through the
// body of the model and every trained token through the head; the backward pass counts as two
// forward passes.
double LimitShare(const TrainBench& bench, const TrainBenchResult& result) {
  const double flops =
      3 * (MeanTokens(result.ours, &TrainStepTimes::row_tokens) * result.body_flops +
           MeanTokens(result.ours, &TrainStepTimes::trained_tokens) * result.head_flops);
  const double limit = bench.dtype == "bf16" && result.limits.bf16_flops_per_second > 0
                           ? result.limits.bf16_flops_per_second
                           : result.limits.flops_per_second;
  const double seconds = Median(Of(result.ours, &TrainStepTimes::train_seconds));
  return limit > 0 && seconds > 0 ? flops / limit / seconds : 0;
}

struct Part {
  const char* name;
  double TrainStepTimes::*seconds;
};
constexpr Part kParts[] = {{"step", &TrainStepTimes::step_seconds},
                           {"generate", &TrainStepTimes::generate_seconds},
                           {"train", &TrainStepTimes::train_seconds}};

// The peer's time per trained token, over ours.
double Ratio(const TrainBenchResult& result, const Part& part) {
  const auto per_token = [&](const TrainResult& one) {
    return Median(Of(one, part.seconds)) / MeanTokens(one, &TrainStepTimes::trained_tokens);
  };
  return per_token(*result.peer) / per_token(result.ours);
}

}  // namespace

std::string ToText(const TrainBench& bench, const TrainBenchResult& result) {
  std::string out = absl::StrFormat(
      "%d prompts of about %d tokens x %d completions of at most %d, trainer %s, server %s, on %s, "
      "%s; machine: %.0f GFLOP/s fp32, %.0f bf16\n%-9s %-24s %9s %19s %14s %11s %9s %s\n",
      bench.prompts, bench.prompt_tokens, bench.group, bench.new_tokens, bench.dtype,
      bench.server_dtype, bench.device, bench.numerics, result.limits.flops_per_second / 1e9,
      result.limits.bf16_flops_per_second / 1e9, "part", "engine", "median s", "(least - most)",
      "trained tokens", "peak memory", "of limit", "tandem over it, per trained token");
  for (const Part& part : kParts) {
    const auto line = [&](const TrainResult& one, const std::string& limit,
                          const std::string& ratio) {
      const std::vector<double> seconds = Of(one, part.seconds);
      absl::StrAppendFormat(
          &out, "%-9s %-24s %9.2f %19s %14.0f %8.2f GB %9s %s\n", part.name, one.engine,
          Median(seconds),
          absl::StrFormat("(%.2f - %.2f)", Quantile(seconds, 0), Quantile(seconds, 1)),
          MeanTokens(one, &TrainStepTimes::trained_tokens),
          static_cast<double>(one.peak_bytes) / 1e9, limit, ratio);
    };
    const bool is_train = part.seconds == &TrainStepTimes::train_seconds;
    const double share = is_train ? LimitShare(bench, result) : 0;
    line(result.ours, share > 0 ? absl::StrFormat("%.0f %%", 100 * share) : "", "");
    if (result.peer) line(*result.peer, "", absl::StrFormat("%.2fx", Ratio(result, part)));
  }
  return out;
}

std::string ToJson(const TrainBench& bench, const TrainBenchResult& result) {
  nlohmann::json out = {{"benchmark", "train"},
                        {"dtype", bench.dtype},
                        {"server_dtype", bench.server_dtype},
                        {"device", bench.device},
                        {"numerics", bench.numerics},
                        {"prompts", bench.prompts},
                        {"group", bench.group},
                        {"prompt_tokens", bench.prompt_tokens},
                        {"new_tokens", bench.new_tokens},
                        {"share_of_limit", LimitShare(bench, result)}};
  const auto put = [&](const char* name, const TrainResult& one) {
    nlohmann::json& row = out[name];
    row = {{"engine", one.engine},
           {"peak_bytes", one.peak_bytes},
           {"trained_tokens", MeanTokens(one, &TrainStepTimes::trained_tokens)},
           {"row_tokens", MeanTokens(one, &TrainStepTimes::row_tokens)}};
    for (const Part& part : kParts) {
      const std::vector<double> seconds = Of(one, part.seconds);
      row[absl::StrCat(part.name, "_seconds")] = {{"median", Median(seconds)},
                                                  {"least", Quantile(seconds, 0)},
                                                  {"most", Quantile(seconds, 1)}};
    }
  };
  put("tandem", result.ours);
  if (result.peer) {
    put("peer", *result.peer);
    for (const Part& part : kParts) out["ratio"][part.name] = Ratio(result, part);
  }
  return out.dump(1) + "\n";
}

}  // namespace tandem::cli
