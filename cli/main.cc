// The program `tandem`. Each subcommand has a file (subcommand.h declares them), and commands.cc
// lists them.
#include <string>
#include <vector>

#include "cli/io/subcommand.h"
#include "common/process/thread_team.h"

int main(int argc, char** argv) {
  tandem::EnsurePassiveThreads(argc, argv);
  return tandem::cli::RunTandem(std::vector<std::string>(argv + 1, argv + argc));
}
