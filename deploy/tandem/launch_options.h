// LaunchOptions: what `tandem run` itself decides; section `launch` of a run file.
#ifndef TANDEM_DEPLOY_TANDEM_LAUNCH_OPTIONS_H_
#define TANDEM_DEPLOY_TANDEM_LAUNCH_OPTIONS_H_

#include <cstdint>
#include <string>

#include "common/base/options.h"

namespace tandem::front {

struct LaunchOptions {
  int64_t num_servers = 1;
  int64_t num_ranks = 1;
  int64_t base_port = 0;
  std::string binaries;
  double ready_seconds = 300;
  double stop_seconds = 120;
};
void BindOptions(OptionBinder& binder, LaunchOptions& options);

// The directory of the running program, where its siblings are.
std::string ProgramDirectory();

}  // namespace tandem::front

#endif  // TANDEM_DEPLOY_TANDEM_LAUNCH_OPTIONS_H_
