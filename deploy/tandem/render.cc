// tandem render: a run file as what a cluster's scheduler takes. One child per scheduler.
#include <CLI/CLI.hpp>

#include "deploy/tandem/subcommand.h"

namespace tandem::front {

void AddRenderCommand(CLI::App& app, Action& chosen) {
  CLI::App* sub = app.add_subcommand("render", "A run file as what a cluster takes");
  sub->require_subcommand(1);
  AddRenderKubernetesCommand(*sub, chosen);
  AddRenderSlurmCommand(*sub, chosen);
}

}  // namespace tandem::front
