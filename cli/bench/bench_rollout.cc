// tandem bench rollout: measures the rollout engine in this process and compares it with the
// machine's limits and, with --peer, with other engines on the same work. Also adds `tandem bench`.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/bench/bench.h"
#include "cli/io/live_line.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "cli/model/model_input.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/options/command_line.h"
#include "rollout_server/engine/engine.h"

namespace tandem::cli {
namespace {

struct BenchFlags {
  std::string model;
  std::string device = "cpu", dtype = "bf16";
  bool cuda_graphs = true;
  std::vector<Numerics> numerics = {Numerics::kFast};
  std::vector<std::string> weights = {"dtype"};
  std::string activations = "auto";
  std::vector<std::string> cases = {"decode-1",  "decode-8",  "decode-32",
                                    "decode-64", "prefill-8", "first-token-8"};
  int64_t prompt_tokens = 64, new_tokens = 128, repeats = 3, threads = 0;
  std::vector<std::string> peers;
  JsonFlags json;
};

constexpr int64_t kCudaStepTokens = 8192;  // fewer prompt tokens do not keep a GPU busy
// The run that a first-token case is compared with.
constexpr const char* kOneSample = "one sample";

absl::StatusOr<std::vector<BenchCase>> ParseCases(const BenchFlags& flags) {
  std::vector<BenchCase> cases;
  for (const std::string& name : flags.cases) {
    TANDEM_ASSIGN_OR_RETURN(cases.emplace_back(),
                            ParseCase(name, flags.prompt_tokens, flags.new_tokens));
  }
  return cases;
}

// Runs one pass over the case. Prompts differ from pass to pass, so that nothing is found in the
// prefix index.
absl::StatusOr<BenchTimes> RunCase(rollout::Engine& engine, const BenchCase& c, int64_t pass) {
  const int64_t groups = c.batch / c.group;
  for (int64_t g = 0; g < groups; ++g) {
    rollout::GroupRequest request;
    request.key = g;
    for (int64_t t = 0; t < c.prompt_tokens; ++t) {
      request.prompt.push_back(static_cast<int32_t>(
          (100 + t * 7919 + (g + 1) * 104729 + pass * 15485863) % engine.config().vocab_size));
    }
    request.num_completions = static_cast<int32_t>(c.group);
    request.sampling.max_new_tokens = static_cast<int32_t>(c.new_tokens);
    request.sampling.seed = static_cast<uint64_t>(g);
    request.sampling.ignore_eos = true;
    TANDEM_RETURN_IF_ERROR(engine.Add(std::move(request)));
  }
  const rollout::EngineStats before = engine.Stats();
  rollout::EngineStats prefilled = before;
  const uint64_t prompts =
      before.num_prompt_tokens_computed + static_cast<uint64_t>(groups * c.prompt_tokens);
  const double start = MonotonicSeconds();
  BenchTimes times;
  while (engine.HasWork()) {
    TANDEM_RETURN_IF_ERROR(engine.Step().status());
    if (times.prefill.seconds > 0) continue;
    const rollout::EngineStats now = engine.Stats();
    if (now.num_prompt_tokens_computed < prompts) continue;
    times.prefill.seconds = MonotonicSeconds() - start;
    prefilled = now;
  }
  const rollout::EngineStats after = engine.Stats();
  times.decode.seconds = MonotonicSeconds() - start - times.prefill.seconds;
  times.prefill.work = prefilled.step_work - before.step_work;
  times.decode.work = after.step_work - prefilled.step_work;
  times.prefill.tokens = groups * c.prompt_tokens;  // computed once for a group
  // This is not batch x (new - 1), because the first groups already decode while later prompts are
  // computed.
  times.decode.tokens =
      static_cast<int64_t>(after.num_tokens_sampled - prefilled.num_tokens_sampled);
  return times;
}

absl::StatusOr<std::unique_ptr<rollout::Engine>> MakeEngine(const BenchFlags& flags,
                                                            Numerics numerics,
                                                            const std::string& weights,
                                                            const std::vector<BenchCase>& cases) {
  rollout::EngineOptions options;
  options.quantised.weights = WeightSchemes().at(weights);
  if (weights == "int8" || weights == "int4_group") {
    options.quantised.activations = ActivationFormats().at(flags.activations);
  }
  if (flags.device == "cuda") {
    options.device = Device::kCuda;
    options.cuda_graphs = flags.cuda_graphs;
    options.max_step_tokens = kCudaStepTokens;
  }
  options.dtype = flags.dtype == "bf16" ? ComputeDType::kBf16 : ComputeDType::kFp32;
  options.numerics = numerics;
  options.num_threads = flags.threads;
  options.kv_capacity_tokens = 0;
  for (const BenchCase& c : cases) {
    options.kv_capacity_tokens = std::max<int64_t>(options.kv_capacity_tokens,
                                                   c.batch * (c.prompt_tokens + c.new_tokens + 32));
    options.max_batch_sequences = std::max<int64_t>(options.max_batch_sequences, c.batch);
  }
  TANDEM_ASSIGN_OR_RETURN(auto engine, rollout::Engine::Create(flags.model, options));
  engine->DropInitialTensors();
  return engine;
}

// The engines in this process with their names in the table, in the order of --numerics and
// --weight-format.
using Engines = std::vector<std::pair<std::string, std::unique_ptr<rollout::Engine>>>;

absl::StatusOr<Engines> MakeEngines(const BenchFlags& flags, const std::vector<BenchCase>& cases) {
  Engines engines;
  for (const Numerics numerics : flags.numerics) {
    for (const std::string& weights : flags.weights) {
      TANDEM_ASSIGN_OR_RETURN(auto engine, MakeEngine(flags, numerics, weights, cases));
      TANDEM_RETURN_IF_ERROR(RunCase(*engine, cases[0], 0).status());  // warm up
      std::string name = "tandem";
      if (numerics != flags.numerics[0]) name += " " + std::string(NumericsName(numerics));
      if (weights != flags.weights[0]) name += " " + weights;
      engines.emplace_back(std::move(name), std::move(engine));
    }
  }
  return engines;
}

// Runs a case through all engines in turn. Every second repeat uses the reverse order.
absl::Status RunOurs(const Engines& engines, const BenchCase& c, int64_t repeat, int64_t first_pass,
                     BenchTable& table) {
  struct Run {
    std::string name;
    rollout::Engine* engine;
    BenchCase bench_case;
  };
  std::vector<Run> runs;
  for (const auto& [name, engine] : engines) runs.push_back({name, engine.get(), c});
  if (c.kind == BenchKind::kFirstToken) {
    runs.push_back({kOneSample, engines[0].second.get(), c});
    runs.back().bench_case.batch = runs.back().bench_case.group = 1;
  }
  if (repeat % 2 == 0) std::reverse(runs.begin(), runs.end());
  for (const Run& run : runs) {
    TANDEM_ASSIGN_OR_RETURN(table.rows[c.name][run.name].emplace_back(),
                            RunCase(*run.engine, run.bench_case, first_pass++));
  }
  return absl::OkStatus();
}

absl::Status Bench(BenchFlags& flags) {
  TANDEM_RETURN_IF_ERROR(FindModel(&flags.model));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<BenchCase> cases, ParseCases(flags));
  std::vector<PeerCommand> peers;
  for (const std::string& peer : flags.peers) {
    TANDEM_ASSIGN_OR_RETURN(peers.emplace_back(),
                            FindPeer(peer, flags.model, flags.dtype, flags.threads, flags.device));
  }
  TANDEM_ASSIGN_OR_RETURN(const Engines engines, MakeEngines(flags, cases));
  BenchTable table;
  LiveLine live;
  int64_t pass = 1;
  for (int64_t repeat = 1; repeat <= flags.repeats; ++repeat) {
    TANDEM_ASSIGN_OR_RETURN(table.limits.emplace_back(), engines[0].second->MeasureLimits());
    for (const BenchCase& c : cases) {
      live.Update(absl::StrCat("repeat ", repeat, " of ", flags.repeats, ": ", c.name));
      TANDEM_RETURN_IF_ERROR(RunOurs(engines, c, repeat, pass, table));
      pass += static_cast<int64_t>(engines.size()) + 1;
    }
    for (const PeerCommand& peer : peers) {
      live.Update(absl::StrCat("repeat ", repeat, " of ", flags.repeats, ": ", peer.name));
      TANDEM_ASSIGN_OR_RETURN(const auto of_peer, RunPeer(peer, cases));
      for (const auto& [name, times] : of_peer) table.rows[name][peer.name].push_back(times);
    }
  }
  live.Clear();
  return PrintResult(flags.json, ToText(table, cases), ToJson(table, cases));
}

// A check of the option --cases, so that a wrong value is found before anything is loaded.
std::string CheckCase(const std::string& name) {
  return std::string(ParseCase(name, 1, 2).status().message());
}

}  // namespace

void AddBenchCommand(CLI::App& app, Action& chosen) {
  CLI::App* bench = app.add_subcommand(
      "bench",
      "Benchmarks of the rollout engine, servers, pushes, train steps; simulation of clusters");
  bench->require_subcommand(0, 1);
  AddBenchServeCommand(*bench, chosen);
  AddBenchTrainCommand(*bench, chosen);
  AddBenchPushCommand(*bench, chosen);
  AddBenchSimulateCommand(*bench, chosen);
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* sub = bench->add_subcommand(
      "rollout",
      "The rollout engine: prefill and decode, compared with the machine's limits and with peers");
  sub->add_option("--model", flags->model, kModelFlagHelp)->required();
  AddChoice(sub, "--device", flags->device, {"cpu", "cuda"},
            "where the forward pass runs (docs/dev/cuda.md)");
  sub->add_flag("--cuda-graphs,!--no-cuda-graphs", flags->cuda_graphs,
                "with --device cuda: replay steps of decodes as CUDA graphs (on)");
  AddChoice(sub, "--dtype", flags->dtype, {"fp32", "bf16"}, "compute dtype");
  sub->add_option("--numerics", flags->numerics,
                  "one mode or several; the others are compared with the first")
      ->transform(CLI::CheckedTransformer(NumericsModes()).description("{fast,invariant,exact}"))
      ->delimiter(',')
      ->default_str("fast");
  sub->add_option("--weight-format", flags->weights,
                  "one number format of the weights or several; the others are compared with the "
                  "first")
      ->check(CLI::IsMember({"dtype", "int8", "fp8_e4m3", "int4_group"}))
      ->delimiter(',')
      ->default_str("dtype");
  AddChoice(sub, "--activations", flags->activations, {"auto", "dtype", "int8"},
            "inputs of int8 and int4_group weights; auto: int8 for int8 weights, else as --dtype");
  sub->add_option(
         "--cases", flags->cases,
         "decode-N: N completions in groups of up to 8; prefill-N: N prompts of 512 tokens; "
         "first-token-N: N completions of one such prompt, compared with one completion")
      ->delimiter(',')
      ->check(CheckCase)
      ->capture_default_str();
  AddPositive(sub, "--prompt-tokens", flags->prompt_tokens, "tokens of a prompt in decode cases");
  AddRange(sub, "--max-new-tokens", flags->new_tokens, 2, 1 << 20,
           "tokens of a completion in decode cases; end tokens are ignored, so that all "
           "have this many");
  AddPositive(sub, "--repeats", flags->repeats, "passes over all cases and peers");
  AddThreadsFlag(sub, flags->threads);
  sub->add_option(
         "--peer", flags->peers,
         "llama_cpp, transformers, or a script that speaks as tests/bench/peers/README.md says; "
         "with :WEIGHTS behind it, in that format (llama_cpp:q8_0)")
      ->delimiter(',')
      ->check(CheckPeer);
  AddJsonFlags(sub, &flags->json);
  EndHelp(*sub, "", "tandem bench rollout --model MODEL --cases decode-1,decode-8 --repeats 3");
  EndHelp(*bench, "", "tandem bench rollout --model MODEL --cases decode-1,decode-8 --repeats 3");
  SetAction(*sub, chosen, [flags] { return Finish(Bench(*flags)); });
}

}  // namespace tandem::cli
