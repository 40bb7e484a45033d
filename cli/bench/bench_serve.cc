// tandem bench serve: what callers of a running rollout server see under load.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/bench/serve_load.h"
#include "cli/io/shared_flags.h"
#include "cli/io/json_lines.h"
#include "cli/io/live_line.h"
#include "cli/io/subcommand.h"
#include "cli/security/caller_flags.h"
#include "common/base/exit_codes.h"
#include "common/options/command_line.h"

namespace tandem::cli {
namespace {

struct ServeFlags {
  ServeLoad load;
  JsonFlags json;
  rpc::TlsOptions tls;
};

int Serve(ServeFlags flags) {
  const auto caller = LoadCaller(flags.tls);
  if (!caller.ok()) return FailUsage(caller.status());
  flags.load.caller = *caller;
  LiveLine live;
  const auto result = RunServeLoad(flags.load, [&](int64_t done) {
    live.Update(absl::StrCat(ProgressBar(done, flags.load.groups, 30), " groups"));
  });
  live.Clear();
  if (!result.ok()) return FailUsage(result.status());
  const absl::Status printed =
      PrintResult(flags.json, ToText(flags.load, *result), ToJson(flags.load, *result));
  if (!printed.ok()) return Fail(printed);
  return ToInt(AnyServed(*result) ? ExitCode::kOk : ExitCode::kServerLost);
}

}  // namespace

void AddBenchServeCommand(CLI::App& bench, Action& chosen) {
  auto flags = std::make_shared<ServeFlags>();
  ServeLoad& load = flags->load;
  CLI::App* sub = bench.add_subcommand(
      "serve", "A running rollout server: throughput and latencies as its callers see them");
  sub->add_option("address", load.address, "HOST:PORT of the server")->required();
  sub->add_option("--groups", load.groups, "groups to ask for")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  sub->add_option("--group-size", load.group_size, "completions of a group")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  sub->add_option("--prompt-tokens", load.prompt_tokens, "random ids, distinct for each group")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  sub->add_option("--max-new-tokens", load.new_tokens,
                  "of a completion; end tokens are ignored, so that all have as many")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  CLI::Option* concurrency =
      sub->add_option("--concurrency", load.concurrency, "closed loop: groups in flight")
          ->check(CLI::Range(1, 4096))
          ->capture_default_str();
  sub->add_option("--rate", load.groups_per_second,
                  "open loop: groups a second, Poisson arrivals, whatever the server answers")
      ->check(CLI::PositiveNumber)
      ->excludes(concurrency);
  sub->add_option("--seed", load.seed,
                  "of prompts, draws and arrivals: another seed finds nothing "
                  "of this one in the prefix index")
      ->capture_default_str();
  sub->add_option("--timeout", load.timeout_seconds, "seconds of one group")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  AddCallerFlags(sub, &flags->tls);
  AddJsonFlags(sub, &flags->json);
  EndHelp(*sub, "", "tandem bench serve 127.0.0.1:50051 --groups 16 --max-new-tokens 64");
  sub->callback([flags, &chosen] { chosen = [flags] { return Serve(*flags); }; });
}

}  // namespace tandem::cli
