#include "deploy/tandem/launch_options.h"

#include <filesystem>
#include <system_error>

namespace tandem::front {

void BindOptions(OptionBinder& binder, LaunchOptions& options) {
  binder.Integer("num_servers", &options.num_servers, {.min = 1, .max = 64}, "processes",
                 "rollout servers to start");
  binder.Integer("num_ranks", &options.num_ranks, {.min = 1, .max = 1024}, "processes",
                 "trainer ranks to start, in all; on one machine they share its cores");
  binder.Integer("ranks_per_node", &options.ranks_per_node, {.min = 0, .max = 64}, "processes",
                 "on a cluster: trainer ranks of each node or pod; 0: all on one");
  binder.Integer("gpus_per_server", &options.gpus_per_server, {.min = 0, .max = 64}, "GPUs",
                 "on a cluster: of each rollout server; 0: 1 where server.engine.device is cuda");
  binder.Integer("base_port", &options.base_port, {.min = 0, .max = 65535}, "",
                 "server i listens on base_port + i; 0: free ports");
  binder.Text("binaries", &options.binaries,
              "directory of rollout_server and trainer; empty: beside tandem");
  binder.Number("ready_seconds", &options.ready_seconds, {.min = 1, .max = 86400}, "s",
                "how long a server may take to load its model");
  binder.Number("stop_seconds", &options.stop_seconds, {.min = 0, .max = 86400}, "s",
                "how long a process may take to end after SIGTERM (the trainer saves first)");
  binder.Section("kubernetes", "the run on Kubernetes (`tandem render k8s`, docs/kubernetes.md)",
                 [&](OptionBinder& b) { BindOptions(b, options.kubernetes); });
}

std::string ProgramDirectory() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "." : path.parent_path().string();
}

}  // namespace tandem::front
