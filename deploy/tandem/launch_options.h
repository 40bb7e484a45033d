// LaunchOptions: how a run is placed, on this machine (`tandem run`) or on a cluster (`tandem render`);
// section `launch` of a run file.
#ifndef TANDEM_DEPLOY_TANDEM_LAUNCH_OPTIONS_H_
#define TANDEM_DEPLOY_TANDEM_LAUNCH_OPTIONS_H_

#include <cstdint>
#include <string>

#include "common/base/options.h"
#include "deploy/tandem/kubernetes_options.h"

namespace tandem::front {

struct LaunchOptions {
  int64_t num_servers = 1;
  int64_t num_ranks = 1;
  int64_t ranks_per_node = 0;   // 0: all on one node
  int64_t gpus_per_server = 0;
  int64_t base_port = 0;
  std::string binaries;
  double ready_seconds = 300;
  double stop_seconds = 120;
  KubernetesOptions kubernetes;

  int64_t ranks_on_each_node() const { return ranks_per_node == 0 ? num_ranks : ranks_per_node; }
};
void BindOptions(OptionBinder& binder, LaunchOptions& options);

// The directory of the running program, where its siblings are.
std::string ProgramDirectory();

}  // namespace tandem::front

#endif  // TANDEM_DEPLOY_TANDEM_LAUNCH_OPTIONS_H_
