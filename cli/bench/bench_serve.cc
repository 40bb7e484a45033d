// tandem bench serve: measures what callers of a running rollout server see under load.
#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/bench/serve_load.h"
#include "cli/io/live_line.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
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
  flags.load.tls = flags.tls;
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
      "serve",
      "A running rollout server under load: throughput and latencies as its callers see them");
  sub->add_option("address", load.address, "HOST:PORT of the server; over HTTP also a URL")
      ->required();
  sub->add_option("--protocol", load.protocol,
                  "grpc: our own; http: OpenAI's /v1/completions, also of another engine; "
                  "http-stream: the same, token by token")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, ServeProtocol>{{"grpc", ServeProtocol::kGrpc},
                                               {"http", ServeProtocol::kHttp},
                                               {"http-stream", ServeProtocol::kHttpStream}}))
      ->default_str("grpc");
  AddPositive(sub, "--groups", load.groups, "groups to request");
  AddPositive(sub, "--group-size", load.group_size, "completions of a group");
  AddPositive(sub, "--prompt-tokens", load.prompt_tokens,
              "tokens of a prompt: random ids, different for each group");
  AddPositive(sub, "--max-new-tokens", load.new_tokens,
              "tokens of a completion; end tokens are ignored, so that all have this many");
  CLI::Option* concurrency =
      AddRange(sub, "--concurrency", load.concurrency, 1, 4096, "closed loop: groups in flight");
  sub->add_option("--rate", load.groups_per_second,
                  "open loop: groups per second with Poisson arrivals, independent of the answers")
      ->check(CLI::PositiveNumber)
      ->excludes(concurrency);
  sub->add_option(
         "--seed", load.seed,
         "seed of prompts, sampling and arrivals; the prompts of another seed are not in the "
         "prefix index")
      ->capture_default_str();
  AddPositive(sub, "--timeout", load.timeout_seconds, "seconds allowed for one group");
  AddCallerFlags(sub, &flags->tls);
  AddJsonFlags(sub, &flags->json);
  EndHelp(*sub, "", "tandem bench serve 127.0.0.1:50051 --groups 16 --max-new-tokens 64");
  SetAction(*sub, chosen, [flags] { return Serve(*flags); });
}

}  // namespace tandem::cli
