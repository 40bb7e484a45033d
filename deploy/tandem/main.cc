// tandem: the front door of the pair. One file per subcommand; this one only picks.
#include <CLI/CLI.hpp>
#include <optional>

#include "common/base/command_line.h"
#include "common/base/passive_threads.h"
#include "deploy/tandem/library_versions.h"
#include "deploy/tandem/subcommand.h"

int main(int argc, char** argv) {
  tandem::EnsurePassiveThreads(argc, argv);
  CLI::App app(
      "Tandem: a rollout server and a trainer that learn together, and how far they drift apart.");
  app.name("tandem");
  app.set_version_flag("--version", tandem::front::VersionLine());
  app.require_subcommand(1);
  tandem::front::Action chosen;
  tandem::front::AddDemoCommand(app, chosen);
  tandem::front::AddRunCommand(app, chosen);
  tandem::front::AddRanksCommand(app, chosen);
  tandem::front::AddRenderCommand(app, chosen);
  tandem::front::AddStatusCommand(app, chosen);
  tandem::front::AddCertsCommand(app, chosen);
  tandem::front::AddLogsCommand(app, chosen);
  tandem::front::AddReportCommand(app, chosen);
  tandem::front::AddInitCommand(app, chosen);
  tandem::front::AddSftCommand(app, chosen);
  tandem::front::AddEvalCommand(app, chosen);
  tandem::front::AddExportCommand(app, chosen);
  tandem::front::AddTokenizeCommand(app, chosen);
  tandem::front::AddScoreCommand(app, chosen);
  tandem::front::AddGenerateCommand(app, chosen);
  tandem::front::AddBenchCommand(app, chosen);
  tandem::front::AddDriftCommand(app, chosen);
  tandem::front::AddVersionCommand(app, chosen);
  app.footer(
      "Exit codes: 0 done, 1 internal error, 2 wrong flags or configuration, 3 bad model or data,\n"
      "4 rollout server lost, 5 server owned by another run, 6 delivery of weights not proven,\n"
      "7 storage, 8 too many skipped steps, 9 a child process died, 10 a trainer rank is lost,\n"
      "130 interrupted.");
  if (const std::optional<int> code = tandem::ParseCommandLine(app, argc, argv)) {
    return *code;
  }
  return chosen();
}
