// tandem drift: the drift lab from the command line. Each subcommand has its own file.
#include <CLI/CLI.hpp>

#include "cli/io/subcommand.h"
#include "common/options/command_line.h"

namespace tandem::cli {

void AddDriftCommand(CLI::App& app, Action& chosen) {
  CLI::App* drift = app.add_subcommand(
      "drift",
      "Measure, explain and provoke training-inference mismatch (drift) between the two engines");
  drift->require_subcommand(0, 1);
  AddDriftCaptureCommand(*drift, chosen);
  AddDriftWhyCommand(*drift, chosen);
  AddDriftAttributeCommand(*drift, chosen);
  AddDriftCalibrateCommand(*drift, chosen);
  AddDriftInjectCommand(*drift, chosen);
  AddDriftReplayCommand(*drift, chosen);
  AddDriftPhaseCommand(*drift, chosen);
  EndHelp(*drift, "", "tandem drift why runs/NAME");
}

}  // namespace tandem::cli
