#include "cli/bench/bench_train.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/bench/bench.h"
#include "cli/io/json_lines.h"
#include "cli/model/fresh_model.h"
#include "cli/run/local_run.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/model/model_config.h"
#include "common/process/thread_team.h"
#include "common/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"

namespace tandem::cli {
namespace {

using nlohmann::json;

constexpr int64_t kWarmUp = 1;
// Fills prompts: words of one token each in usual vocabularies.
constexpr const char* kFiller[] = {"the", "train", "left", "early", "and",
                                   "we",  "saw",   "the",  "river"};

// A prompt of about `tokens` tokens, unlike the others from its first word on.
absl::StatusOr<std::string> MakePrompt(const Tokenizer& tokenizer, int64_t number, int64_t tokens) {
  const std::string end = absl::StrCat(" What is ", number + 2, " * 7? Answer:");
  std::string text = absl::StrCat("Story ", number, ":");
  for (int64_t word = 0;; ++word) {
    TANDEM_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, tokenizer.Encode(text + end));
    const int64_t missing = tokens - static_cast<int64_t>(ids.size());
    if (missing <= 0) return text + end;
    // A word is a token or more: never too many at once.
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

// Half of the completions are rewarded, whatever they say; the loss is the one the peer is told to
// take.
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
  if (bench.device == "cuda") {  // the defaults are the CPU's: all completions decode together
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
    return absl::InternalError(absl::StrCat("the run ended with exit code ", ToInt(run.exit_code),
                                            "; its logs are in ", run.run_directory, "/logs"));
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
    return absl::InternalError(absl::StrCat("peer ", peer.name, " timed no step"));
  }
  return result;
}

}  // namespace

absl::StatusOr<TrainResult> ReadTrainSteps(const std::string& metrics_path, int64_t num_warm_up) {
  TANDEM_ASSIGN_OR_RETURN(const auto reader, JsonLineReader::Open(metrics_path));
  TrainResult result;
  for (;;) {
    TANDEM_ASSIGN_OR_RETURN(const std::optional<json> line, reader->Next());
    if (!line) break;
    if (line->value("step", int64_t{0}) <= num_warm_up) continue;
    const auto seconds = [&](const char* name) { return line->value(name, 0.0); };
    if (!line->contains("time/step")) {
      return reader->At(absl::InvalidArgumentError("no time/step: not the line of a train step"));
    }
    result.steps.push_back(
        {.step_seconds = seconds("time/step"),
         .generate_seconds = seconds("time/rollout"),
         .train_seconds = seconds("time/pack") + seconds("time/proximal") + seconds("time/update"),
         .trained_tokens = line->value("loss/num_tokens", int64_t{0}),
         .row_tokens = line->value("loss/num_row_tokens", int64_t{0})});
    const char* const peak = line->contains("memory/device_peak_bytes") ? "memory/device_peak_bytes"
                                                                        : "memory/peak_bytes";
    result.peak_bytes = std::max(result.peak_bytes, line->value(peak, int64_t{0}));
  }
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

}  // namespace tandem::cli
