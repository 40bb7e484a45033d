#include "common/process/libtorch_program.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string_view>
#include <vector>

namespace tandem {

void EnsurePassiveThreads(int, char** argv, char** environment) {
  constexpr std::string_view kPolicy = "OMP_WAIT_POLICY=", kSpins = "GOMP_SPINCOUNT=";
  static char policy[] = "OMP_WAIT_POLICY=passive", spins[] = "GOMP_SPINCOUNT=20000";
  std::vector<char*> passed;
  for (char** variable = environment; *variable != nullptr; ++variable) {
    if (std::strncmp(*variable, kPolicy.data(), kPolicy.size()) == 0) return;
    if (std::strncmp(*variable, kSpins.data(), kSpins.size()) != 0) passed.push_back(*variable);
  }
  passed.insert(passed.end(), {policy, spins, nullptr});
  ::execve("/proc/self/exe", argv, passed.data());
}

void ExitWithoutDestructors(int code) {
  std::cout.flush();
  std::fflush(nullptr);
  std::_Exit(code);
}

}  // namespace tandem
