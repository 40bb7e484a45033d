// The program `tandem`. Each subcommand has a file (subcommand.h declares them), and commands.cc
// lists them.
#include <string>
#include <vector>

#include "cli/io/subcommand.h"
#include "common/process/libtorch_program.h"

[[gnu::section(".preinit_array"), gnu::used]] static auto* before_libraries =
    &tandem::EnsurePassiveThreads;

int main(int argc, char** argv) {
  tandem::ExitWithoutDestructors(
      tandem::cli::RunTandem(std::vector<std::string>(argv + 1, argv + argc)));
}
