// tandem render: a run file as what a cluster's scheduler takes. One child per scheduler.
#include <CLI/CLI.hpp>

#include "cli/io/subcommand.h"
#include "common/options/command_line.h"

namespace tandem::cli {

void AddRenderCommand(CLI::App& app, Action& chosen) {
  CLI::App* sub = app.add_subcommand("render", "A run file as what a cluster takes");
  sub->require_subcommand(0, 1);
  AddRenderKubernetesCommand(*sub, chosen);
  AddRenderSlurmCommand(*sub, chosen);
  EndHelp(*sub, "", "tandem render slurm examples/demo.yaml --out demo.sbatch");
}

}  // namespace tandem::cli
