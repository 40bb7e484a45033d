// tandem bench rollout: speed of the rollout engine in this process, beside the machine's limits and, with
// --peer, beside another engine on the same work.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "deploy/tandem/bench.h"
#include "deploy/tandem/json_lines.h"
#include "deploy/tandem/live_line.h"
#include "deploy/tandem/model_input.h"
#include "deploy/tandem/numerics_option.h"
#include "deploy/tandem/subcommand.h"
#include "rollout_server/engine/engine.h"

namespace tandem::front {
namespace {

struct BenchFlags {
  std::string model;
  std::string dtype = "bf16";
  Numerics numerics = Numerics::kFast;
  std::vector<std::string> cases = {"decode-1", "decode-8", "decode-32", "decode-64", "prefill-8"};
  int64_t prompt_tokens = 64, new_tokens = 128, repeats = 3, threads = 0;
  std::vector<std::string> peers;
  bool json = false;
};

absl::StatusOr<std::vector<BenchCase>> ParseCases(const BenchFlags& flags) {
  std::vector<BenchCase> cases;
  for (const std::string& name : flags.cases) {
    const size_t dash = name.find('-');
    const std::string kind = name.substr(0, dash);
    int32_t batch = 0;
    if (dash == std::string::npos || !absl::SimpleAtoi(name.substr(dash + 1), &batch) || batch < 1 ||
        (kind != "decode" && kind != "prefill")) {
      return absl::InvalidArgumentError(
          absl::StrCat("--cases has '", name, "', want decode-N or prefill-N"));
    }
    BenchCase one{.name = name, .batch = batch, .prompt_tokens = flags.prompt_tokens,
                  .new_tokens = flags.new_tokens};
    one.group = std::min(batch, 8);
    if (batch % one.group != 0) one.group = 1;
    if (kind == "prefill") one = {name, batch, 1, 512, 1};
    cases.push_back(one);
  }
  return cases;
}

// One pass over the case. Prompts differ from pass to pass, so that nothing is found in the prefix index.
absl::StatusOr<BenchTimes> RunCase(rollout::Engine& engine, const BenchCase& c, int pass) {
  const int64_t groups = c.batch / c.group;
  for (int64_t g = 0; g < groups; ++g) {
    rollout::GroupRequest request;
    request.key = g;
    for (int64_t t = 0; t < c.prompt_tokens; ++t) {
      request.prompt.push_back(static_cast<int32_t>(
          (100 + t * 7919 + (g + 1) * 104729 + int64_t{pass} * 15485863) % engine.config().vocab_size));
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
    if (times.prefill_seconds > 0) continue;
    const rollout::EngineStats now = engine.Stats();
    if (now.num_prompt_tokens_computed < prompts) continue;
    times.prefill_seconds = MonotonicSeconds() - start;
    prefilled = now;
  }
  const rollout::EngineStats after = engine.Stats();
  times.decode_seconds = MonotonicSeconds() - start - times.prefill_seconds;
  times.prefill_bytes = prefilled.step_bytes - before.step_bytes;
  times.prefill_flops = prefilled.step_flops - before.step_flops;
  times.decode_bytes = after.step_bytes - prefilled.step_bytes;
  times.decode_flops = after.step_flops - prefilled.step_flops;
  times.prefill_tokens = groups * c.prompt_tokens;  // computed once for a group
  // Not batch x (new - 1): when prompts take several steps, the first groups draw on meanwhile.
  times.decode_tokens =
      static_cast<int64_t>(after.num_tokens_sampled - prefilled.num_tokens_sampled);
  return times;
}

absl::StatusOr<std::unique_ptr<rollout::Engine>> MakeEngine(const BenchFlags& flags,
                                                            const std::vector<BenchCase>& cases) {
  rollout::EngineOptions options;
  options.dtype = flags.dtype == "bf16" ? rollout::ComputeDType::kBf16 : rollout::ComputeDType::kFp32;
  options.numerics = flags.numerics;
  options.num_threads = flags.threads;
  options.kv_capacity_tokens = 0;
  for (const BenchCase& c : cases) {
    options.kv_capacity_tokens = std::max<int64_t>(
        options.kv_capacity_tokens, c.batch * (c.prompt_tokens + c.new_tokens + 32));
    options.max_batch_sequences = std::max<int64_t>(options.max_batch_sequences, c.batch);
  }
  TANDEM_ASSIGN_OR_RETURN(auto engine, rollout::Engine::Create(flags.model, options));
  engine->DropInitialTensors();
  return engine;
}

absl::Status Bench(const BenchFlags& flags) {
  TANDEM_RETURN_IF_ERROR(CheckModelDirectory(flags.model));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<BenchCase> cases, ParseCases(flags));
  TANDEM_ASSIGN_OR_RETURN(const auto engine, MakeEngine(flags, cases));
  std::vector<PeerCommand> peers;
  for (const std::string& peer : flags.peers) {
    TANDEM_ASSIGN_OR_RETURN(peers.emplace_back(),
                            FindPeer(peer, flags.model, flags.dtype, flags.threads));
  }
  BenchTable table;
  LiveLine live;
  TANDEM_RETURN_IF_ERROR(RunCase(*engine, cases[0], 0).status());  // warm up
  for (int64_t repeat = 0; repeat < flags.repeats; ++repeat) {
    table.limits.push_back(engine->MeasureLimits());
    for (size_t i = 0; i < cases.size(); ++i) {
      live.Update(absl::StrCat("repeat ", repeat + 1, " of ", flags.repeats, ": ", cases[i].name));
      TANDEM_ASSIGN_OR_RETURN(
          const BenchTimes times,
          RunCase(*engine, cases[i], static_cast<int>(1 + repeat * 100 + static_cast<int64_t>(i))));
      table.rows[cases[i].name]["tandem"].push_back(times);
    }
    for (const PeerCommand& peer : peers) {
      live.Update(absl::StrCat("repeat ", repeat + 1, " of ", flags.repeats, ": ", peer.name));
      TANDEM_ASSIGN_OR_RETURN(const auto of_peer, RunPeer(peer, cases));
      for (const auto& [name, times] : of_peer) table.rows[name][peer.name].push_back(times);
    }
  }
  live.Clear();
  std::fputs(flags.json ? ToJson(table, cases).c_str() : ToText(table, cases).c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace

void AddBenchCommand(CLI::App& app, Action& chosen) {
  CLI::App* bench = app.add_subcommand("bench", "Measure this machine with this model");
  bench->require_subcommand(1);
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* sub = bench->add_subcommand(
      "rollout", "The rollout engine: prefill and decode, beside the machine's limits and peers");
  sub->add_option("--model", flags->model, "Hugging Face directory")->required();
  sub->add_option("--dtype", flags->dtype, "compute dtype")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  AddNumericsOption(sub, flags->numerics);
  sub->add_option("--cases", flags->cases,
                  "decode-N: N completions in groups of up to 8; prefill-N: N prompts of 512 tokens")
      ->delimiter(',')
      ->capture_default_str();
  sub->add_option("--prompt-tokens", flags->prompt_tokens, "of decode cases")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  sub->add_option("--new-tokens", flags->new_tokens, "of decode cases; end tokens are ignored")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  sub->add_option("--repeats", flags->repeats, "passes over all cases, peers in between")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  sub->add_option("--threads", flags->threads, "0: the cores of the machine")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  sub->add_option("--peer", flags->peers,
                  "llama_cpp, transformers, or a script that speaks as tests/bench/peers/README.md says")
      ->delimiter(',');
  sub->add_flag("--json", flags->json, "one JSON object instead of the table");
  sub->callback([flags, &chosen] {
    chosen = [flags] {
      const absl::Status status = Bench(*flags);
      return status.ok() ? 0 : Fail(status);
    };
  });
}

}  // namespace tandem::front
