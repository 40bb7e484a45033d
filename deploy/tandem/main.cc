// tandem: the one program to know. One file per subcommand (subcommand.h); commands.cc lists them.
#include <string>
#include <vector>

#include "common/base/passive_threads.h"
#include "deploy/tandem/subcommand.h"

int main(int argc, char** argv) {
  tandem::EnsurePassiveThreads(argc, argv);
  return tandem::front::RunTandem(std::vector<std::string>(argv + 1, argv + argc));
}
