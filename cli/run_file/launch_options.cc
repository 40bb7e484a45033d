#include "cli/run_file/launch_options.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace tandem::cli {

void BindOptions(OptionBinder& binder, LaunchOptions& options) {
  binder.Integer("num_servers", &options.num_servers, {.min = 1, .max = 64}, "processes",
                 "rollout servers to start");
  binder.Integer("num_ranks", &options.num_ranks, {.min = 1, .max = 8192}, "processes",
                 "trainer ranks in all, which train as one; on one machine they share the cores");
  binder.Integer("ranks_per_node", &options.ranks_per_node, {.min = 0, .max = 64}, "processes",
                 "on a cluster: ranks of one node, one a GPU; 0: all on one node");
  binder.Integer(
      "gpus_per_server", &options.gpus_per_server, {.min = 0, .max = 64}, "GPUs",
      "on a cluster: of one server; 0: one where server.engine.device is cuda, else none");
  binder.Integer("base_port", &options.base_port, {.min = 0, .max = 65535}, "",
                 "server i listens on base_port + i; 0: free ports");
  binder.Text("binaries", &options.binaries,
              "directory of rollout_server and trainer; empty: beside tandem");
  binder.Number("ready_seconds", &options.ready_seconds, {.min = 1, .max = 86400}, "s",
                "how long a server may take to load its model");
  binder.Number(
      "stop_seconds", &options.stop_seconds, {.min = 0, .max = 86400}, "s",
      "how long a process may take to end after SIGTERM (the trainer saves first): the longest "
      "train step and time/checkpoint");
  binder.Integer(
      "max_restarts", &options.max_restarts, {.min = 0, .max = 1e6}, "restarts",
      "on this machine: how often each rollout server, and the trainer with all its "
      "ranks, is started again after it died; the next death ends the run. 0: the first");
  binder.Number("restart_delay_seconds", &options.restart_delay_seconds, {.min = 0, .max = 60}, "s",
                "before the first restart of a process; doubled for each of its next, up to 60 s");
  binder.Section("kubernetes", "the run on Kubernetes (`tandem render k8s`, docs/kubernetes.md)",
                 [&](OptionBinder& b) { BindOptions(b, options.kubernetes); });
  binder.Section("slurm", "`tandem render slurm` (docs/slurm.md)",
                 [&](OptionBinder& b) { BindOptions(b, options.slurm); });
}

absl::StatusOr<int64_t> NumRankNodes(const LaunchOptions& options) {
  if (options.ranks_per_node == 0) return 1;
  if (options.num_ranks % options.ranks_per_node != 0) {
    return absl::InvalidArgumentError(absl::StrCat("launch.num_ranks ", options.num_ranks,
                                                   " is not a multiple of launch.ranks_per_node ",
                                                   options.ranks_per_node));
  }
  return options.num_ranks / options.ranks_per_node;
}

std::string ProgramDirectory() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "." : path.parent_path().string();
}

}  // namespace tandem::cli
