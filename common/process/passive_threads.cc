#include "common/process/passive_threads.h"

#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace tandem {

void EnsurePassiveThreads(int argc, char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  ::setenv("OMP_WAIT_POLICY", "passive", 1);
  ::setenv("GOMP_SPINCOUNT", "20000", 1);
  std::vector<std::string> copies(argv, argv + argc);
  std::vector<char*> arguments;
  for (std::string& argument : copies) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  ::execv("/proc/self/exe", arguments.data());
}

}  // namespace tandem
