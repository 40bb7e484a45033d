#include "cli/bench/bench_train.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/bench/bench.h"
#include "cli/bench/serve_load.h"
#include "cli/io/json_lines.h"
#include "cli/io/live_line.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "cli/model/model_directory.h"
#include "cli/model/model_input.h"
#include "cli/run/local_run.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/model/model_config.h"
#include "common/options/command_line.h"
#include "common/process/thread_team.h"
#include "common/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"

namespace tandem::cli {
namespace {

using nlohmann::json;

constexpr int64_t kWarmUp = 1;
// Words that fill prompts. Each is one token in most vocabularies.
constexpr const char* kFiller[] = {"the", "train", "left", "early", "and",
                                   "we",  "saw",   "the",  "river"};

// A prompt of about `tokens` tokens that differs from the others from its second word on.
absl::StatusOr<std::string> MakePrompt(const Tokenizer& tokenizer, int64_t number, int64_t tokens) {
  const std::string end = absl::StrCat(" What is ", number + 2, " * 7? Answer:");
  std::string text = absl::StrCat("Story ", number, ":");
  for (int64_t word = 0;; ++word) {
    TANDEM_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, tokenizer.Encode(text + end));
    const int64_t missing = tokens - static_cast<int64_t>(ids.size());
    if (missing <= 0) return text + end;
    // A word is at least one token, so half the missing number is never too many.
    for (int64_t i = 0; i < std::max<int64_t>(1, missing / 2); ++i, ++word) {
      absl::StrAppend(&text, " ", kFiller[static_cast<size_t>(word) % std::size(kFiller)]);
    }
  }
}

absl::Status WriteData(const TrainBench& bench, const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(bench.model));
  std::string lines;
  for (int64_t i = 0; i < bench.prompts * (bench.steps + kWarmUp); ++i) {
    TANDEM_ASSIGN_OR_RETURN(const std::string prompt,
                            MakePrompt(*tokenizer, i, bench.prompt_tokens));
    absl::StrAppend(&lines, json{{"prompt", prompt}, {"answer", "7"}}.dump(), "\n");
  }
  return WriteFileAtomically(path, lines);
}

// About half of the completions are rewarded, so that groups have advantages. The loss is that of
// the peer.
json RunFileOf(const TrainBench& bench, const std::string& data) {
  json file = {
      {"launch", {{"num_servers", 1}}},
      {"server",
       {{"model", bench.model},
        {"engine",
         {{"dtype", bench.server_dtype}, {"device", bench.device}, {"numerics", bench.numerics}}}}},
      {"trainer",
       {{"model", bench.model},
        {"run", {{"out", bench.out}, {"name", "run"}}},
        {"seed", 1},
        {"steps", bench.steps + kWarmUp},
        {"dtype", bench.dtype},
        {"device", bench.device},
        {"numerics", bench.numerics},
        {"prompts_per_step", bench.prompts},
        {"completions_per_prompt", bench.group},
        {"sampling", {{"temperature", 1}, {"max_new_tokens", bench.new_tokens}}},
        {"data", {{"train", data}, {"chat", false}}},
        {"reward", {{"weights", {{"format", 1}}}, {"format", "(?s).*[a-m]"}}},
        {"loss", {{"normalisation", "constant"}, {"constant_length", bench.new_tokens}}},
        {"optimizer", {{"learning_rate", 1e-6}, {"max_grad_norm", 1}}},
        {"probe", {{"every", 0}}},
        {"eval", {{"every", 0}, {"at_start", false}, {"at_end", false}}},
        {"checkpoint", {{"every", 0}, {"at_end", false}}}}}};
  if (bench.device == "cuda") {  // the defaults suit a CPU; here all completions decode together
    const int64_t completions = bench.prompts * bench.group;
    const int64_t tokens = bench.prompt_tokens + bench.new_tokens;
    json& engine = file["server"]["engine"];
    engine["max_batch_sequences"] = std::min<int64_t>(completions, 4096);
    engine["max_step_tokens"] = 8192;
    engine["kv_capacity_tokens"] = 2 * completions * tokens;
    file["trainer"]["microbatch_tokens"] = 16384;
  }
  return file;
}

absl::StatusOr<TrainResult> RunPair(const TrainBench& bench, const std::string& data) {
  const std::string config = bench.out + "/bench_train.yaml";
  TANDEM_RETURN_IF_ERROR(
      WriteFileAtomically(config, RunFileOf(bench, data).dump(1)));  // JSON is YAML
  TANDEM_ASSIGN_OR_RETURN(const LocalRunResult run, RunLocally({.config = config, .clean = true}));
  if (run.exit_code != ExitCode::kOk) {
    return Internal("the run ended with exit code ", ToInt(run.exit_code), "; its logs are in ",
                    run.run_directory, "/logs");
  }
  TANDEM_ASSIGN_OR_RETURN(TrainResult result,
                          ReadTrainSteps(run.run_directory + "/metrics.jsonl", kWarmUp));
  result.engine = "tandem";
  return result;
}

absl::StatusOr<TrainResult> RunTrainPeer(const TrainBench& bench, const std::string& data) {
  TANDEM_ASSIGN_OR_RETURN(const PeerCommand peer,
                          FindPeer(bench.peer, bench.model, bench.dtype, /*threads=*/0));
  TANDEM_ASSIGN_OR_RETURN(
      const json answer,
      RunPeerCommand(peer, absl::StrCat(" --data '", data, "' --prompts ", bench.prompts,
                                        " --group ", bench.group, " --new-tokens ",
                                        bench.new_tokens, " --steps ", bench.steps)));
  TrainResult result = {.engine = absl::StrCat(peer.name, " (microbatch ",
                                               answer.value("microbatch", int64_t{0}), ")"),
                        .peak_bytes = answer.value("peak_bytes", int64_t{0})};
  for (const json& step : answer.value("steps", json::array())) {
    result.steps.push_back({.step_seconds = step.value("step_seconds", 0.0),
                            .generate_seconds = step.value("generate_seconds", 0.0),
                            .train_seconds = step.value("train_seconds", 0.0),
                            .trained_tokens = step.value("trained_tokens", int64_t{0})});
  }
  if (result.steps.empty()) {
    return Internal("peer ", peer.name, " timed no step");
  }
  return result;
}

absl::Status Train(TrainBench& bench, const JsonFlags& json) {
  if (bench.device == "cuda" && !bench.peer.empty()) {
    return AsUsageError(
        absl::InvalidArgumentError("--peer trains on the CPU: leave out --device cuda"));
  }
  TANDEM_RETURN_IF_ERROR(FindModel(&bench.model));
  LiveLine live;
  const auto result = RunTrainBench(
      bench, [&](const std::string& what) { live.Update(absl::StrCat("bench train: ", what)); });
  live.Clear();
  TANDEM_RETURN_IF_ERROR(result.status());
  return PrintResult(json, ToText(bench, *result), ToJson(bench, *result));
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
  const double seconds = Median(Column(result.ours.steps, &TrainStepTimes::train_seconds));
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
    return Median(Column(one.steps, part.seconds)) /
           MeanTokens(one, &TrainStepTimes::trained_tokens);
  };
  return per_token(*result.peer) / per_token(result.ours);
}

}  // namespace

absl::StatusOr<TrainResult> ReadTrainSteps(const std::string& metrics_path, int64_t num_warm_up) {
  TANDEM_ASSIGN_OR_RETURN(const auto reader, JsonLineReader::Open(metrics_path));
  TrainResult result;
  TANDEM_RETURN_IF_ERROR(reader->ForEach([&](const json& line) -> absl::Status {
    if (line.value("step", int64_t{0}) <= num_warm_up) return absl::OkStatus();
    const auto seconds = [&](const char* name) { return line.value(name, 0.0); };
    if (!line.contains("time/step")) {
      return absl::InvalidArgumentError("no time/step: not the line of a train step");
    }
    result.steps.push_back(
        {.step_seconds = seconds("time/step"),
         .generate_seconds = seconds("time/rollout"),
         .train_seconds = seconds("time/pack") + seconds("time/proximal") + seconds("time/update"),
         .trained_tokens = line.value("loss/num_tokens", int64_t{0}),
         .row_tokens = line.value("loss/num_row_tokens", int64_t{0})});
    const char* const peak = line.contains("memory/device_peak_bytes") ? "memory/device_peak_bytes"
                                                                       : "memory/peak_bytes";
    result.peak_bytes = std::max(result.peak_bytes, line.value(peak, int64_t{0}));
    return absl::OkStatus();
  }));
  return result;
}

absl::StatusOr<TrainBenchResult> RunTrainBench(
    const TrainBench& bench, const std::function<void(const std::string&)>& progress) {
  TrainBenchResult result;
  TANDEM_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(bench.model));
  const auto head = static_cast<double>(config.vocab_size * config.hidden_size);
  const double matrices = config.tie_word_embeddings ? 1 : 2;
  result.head_flops = 2 * head;
  result.body_flops = 2 * (static_cast<double>(NumParameters(config)) - matrices * head);
  if (bench.device == "cpu") {
    ThreadTeam team(std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
    result.limits = MeasureMachineLimits(team, ActiveInstructionSet());
  }
  TANDEM_RETURN_IF_ERROR(MakeDirectories(bench.out));
  const std::string data = bench.out + "/train.jsonl";
  TANDEM_RETURN_IF_ERROR(WriteData(bench, data));
  TANDEM_ASSIGN_OR_RETURN(result.ours, RunPair(bench, data));
  if (bench.peer.empty()) return result;
  progress(absl::StrCat(bench.peer, " at several microbatches"));
  TANDEM_ASSIGN_OR_RETURN(result.peer, RunTrainPeer(bench, data));
  return result;
}

void AddBenchTrainCommand(CLI::App& bench, Action& chosen) {
  auto flags = std::make_shared<TrainBench>();
  auto json = std::make_shared<JsonFlags>();
  flags->out = (std::filesystem::temp_directory_path() / "tandem_bench_train").string();
  CLI::App* sub = bench.add_subcommand(
      "train", "Train steps of server and trainer on this machine, compared with another trainer");
  sub->add_option("--model", flags->model, kModelFlagHelp)->required();
  AddChoice(sub, "--dtype", flags->dtype, {"fp32", "bf16"},
            "compute dtype of the trainer and of the peer");
  AddChoice(sub, "--server-dtype", flags->server_dtype, {"fp32", "bf16"},
            "compute dtype of the rollout server");
  AddChoice(sub, "--device", flags->device, {"cpu", "cuda"}, "where server and trainer compute");
  AddChoice(sub, "--numerics", flags->numerics, {"fast", "exact"},
            "numerics of server and trainer; exact needs equal dtypes");
  AddPositive(sub, "--prompts", flags->prompts, "prompts per train step");
  AddPositive(sub, "--group-size", flags->group, "completions of a prompt");
  AddPositive(sub, "--prompt-tokens", flags->prompt_tokens, "approximate tokens of a prompt");
  AddPositive(sub, "--max-new-tokens", flags->new_tokens, "most tokens of a completion");
  AddPositive(sub, "--steps", flags->steps, "measured train steps, after one to warm up");
  sub->add_option("--peer", flags->peer,
                  "trl, or a script that speaks as tests/bench/peers/README.md says")
      ->check(CheckPeer);
  sub->add_option("--out", flags->out, "directory of the run and its data")->capture_default_str();
  AddJsonFlags(sub, json.get());
  EndHelp(*sub, "", "tandem bench train --model MODEL --prompts 4 --group-size 4 --steps 2");
  SetAction(*sub, chosen, [flags, json] { return Finish(Train(*flags, *json)); });
}

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
      const std::vector<double> seconds = Column(one.steps, part.seconds);
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
      const std::vector<double> seconds = Column(one.steps, part.seconds);
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
