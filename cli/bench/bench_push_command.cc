// tandem bench push: weight pushes into servers that it starts, by transport and form.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "cli/bench/bench_push.h"
#include "cli/io/shared_flags.h"
#include "cli/io/json_lines.h"
#include "cli/io/live_line.h"
#include "cli/io/subcommand.h"
#include "cli/model/model_input.h"
#include "cli/run_file/launch_options.h"
#include "common/base/status_macros.h"
#include "common/options/command_line.h"

namespace tandem::cli {
namespace {

absl::Status Push(const PushBench& bench, const JsonFlags& json) {
  TANDEM_RETURN_IF_ERROR(CheckModelDirectory(bench.model));
  LiveLine live;
  const auto result =
      RunPushBench(bench, [&](const std::string& what) { live.Update("bench push: " + what); });
  live.Clear();
  TANDEM_RETURN_IF_ERROR(result.status());
  return PrintResult(json, ToText(*result), ToJson(*result));
}

}  // namespace

void AddBenchPushCommand(CLI::App& bench, Action& chosen) {
  auto flags = std::make_shared<PushBench>();
  auto json = std::make_shared<JsonFlags>();
  flags->server_binary = ProgramDirectory() + "/rollout_server";
  flags->logs = (std::filesystem::temp_directory_path() / "tandem_bench_push").string();
  CLI::App* sub = bench.add_subcommand(
      "push", "Weight pushes to rollout servers on this machine, by transport, dense and delta");
  sub->add_option("--model", flags->model, "Hugging Face directory")->required();
  sub->add_option("--dtype", flags->dtype, "of the servers")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  sub->add_option("--device", flags->device, "where the servers compute")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  sub->add_option("--num-servers", flags->servers, "how many servers; one number or several")
      ->delimiter(',')
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  sub->add_option("--transports", flags->transports, "stream, collective")
      ->delimiter(',')
      ->check(CLI::IsMember({"stream", "collective"}))
      ->capture_default_str();
  sub->add_option("--changed", flags->changed_share,
                  "share of the elements that change from push to push (the demo's: 0.02 to 0.05)")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  sub->add_option("--repeats", flags->repeats, "pushes of each kind, after one to warm up")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  sub->add_option(
         "--load", flags->load_groups,
         "groups of 4 x 64 tokens asked of the first server while it is pushed to: how long "
         "tokens keep their callers waiting; 0: none")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  sub->add_option("--logs", flags->logs, "directory of the servers' logs")->capture_default_str();
  AddJsonFlags(sub, json.get());
  EndHelp(*sub, "", "tandem bench push --model MODEL --num-servers 1,2 --repeats 3");
  sub->callback([flags, json, &chosen] {
    chosen = [flags, json] {
      const absl::Status status = Push(*flags, *json);
      return status.ok() ? 0 : Fail(status);
    };
  });
}

}  // namespace tandem::cli
