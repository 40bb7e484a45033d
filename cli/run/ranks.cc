// tandem ranks: starts N trainer ranks on this host as children of one process.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "cli/io/live_line.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "cli/run/rank_processes.h"
#include "cli/run_file/launch_options.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/options/command_line.h"

namespace tandem::cli {
namespace {

struct RanksFlags {
  NodeFlags node;
  std::string logs;
  double grace_seconds = 30;
  std::vector<std::string> command;
};

absl::StatusOr<RanksPlan> PlanOf(const RanksFlags& flags) {
  RanksPlan plan;
  TANDEM_ASSIGN_OR_RETURN(plan.node, ReadNodeRanks(comm::ProcessEnvironment(), flags.node));
  if (plan.node.master_port == 0) plan.node.master_port = FreePort();
  plan.argv = flags.command;
  const char* const path = std::getenv("PATH");
  TANDEM_ASSIGN_OR_RETURN(
      plan.argv[0], FindProgram(plan.argv[0], path == nullptr ? "" : path, ProgramDirectory()));
  plan.logs = flags.logs;
  plan.grace_seconds = flags.grace_seconds;
  plan.colour_output = ColourWantedOn(STDOUT_FILENO);
  plan.colour_errors = ColourWantedOn(STDERR_FILENO);
  return plan;
}

int RunRanks(const RanksFlags& flags) {
  const absl::StatusOr<RanksPlan> plan = PlanOf(flags);
  if (!plan.ok()) return FailUsage(AsUsageError(plan.status()));
  const NodeRanks& node = plan->node;
  std::fprintf(stderr,
               "tandem ranks: ranks %d to %d of %d (node %d of %d, as said by: %s), rank 0 at "
               "%s:%d\n",
               node.rank(0), node.rank(node.per_node - 1), node.world_size(), node.node,
               node.num_nodes, node.source.c_str(), node.master_host.c_str(), node.master_port);
  const StopSignal stop;
  RankProcesses ranks(*plan, &stop);
  if (const absl::Status started = ranks.Start(); !started.ok()) {
    return FailUsage(trainer::WithExitCode(started, ExitCode::kChildDied));
  }
  return ranks.Wait();
}

}  // namespace

void AddRanksCommand(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<RanksFlags>();
  CLI::App* sub = app.add_subcommand(
      "ranks", "Starts the trainer ranks of this host: tandem ranks --per-node 8 -- trainer ...");
  sub->add_option("--per-node", flags->node.per_node, "processes to start here, one per device")
      ->required()
      ->check(CLI::Range(1, 1024));
  sub->add_option("--nodes", flags->node.nodes,
                  "hosts of the launch; default: from the launcher's variables")
      ->check(CLI::PositiveNumber);
  sub->add_option("--node-rank", flags->node.node_rank,
                  "number of this host, from 0; default: from the launcher's variables")
      ->check(CLI::NonNegativeNumber);
  sub->add_option("--master", flags->node.master,
                  "HOST or HOST:PORT where rank 0 listens; default: from the launcher's variables");
  sub->add_option("--logs", flags->logs, "write each rank's lines to rank_N.log in this folder");
  AddNonNegative(sub, "--grace", flags->grace_seconds,
                 "seconds that the other ranks have to end by themselves after one failed");
  sub->add_option("command", flags->command, "program and arguments of every rank, after --")
      ->required();
  sub->positionals_at_end();
  EndHelp(
      *sub,
      "Each rank gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT,\n"
      "TORCHELASTIC_RUN_ID and TORCHELASTIC_RESTART_COUNT. The exit code is that of the first "
      "rank\n"
      "that failed. SIGTERM and Ctrl-C reach every rank; a second one ends all at once.",
      "tandem ranks --per-node 2 -- trainer --config run.yaml --servers 127.0.0.1:50051");
  SetAction(*sub, chosen, [flags] { return RunRanks(*flags); });
}

}  // namespace tandem::cli
