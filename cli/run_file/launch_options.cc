#include "cli/run_file/launch_options.h"
#include "common/base/status_macros.h"

#include <filesystem>
#include <system_error>

namespace tandem::cli {
namespace {

void BindKubernetes(OptionBinder& binder, KubernetesOptions& options) {
  binder.Text("name", &options.name,
              "first part of the names of the run's objects, a DNS label of at most 18 letters; "
              "empty: trainer.run.name");
  binder.Choice("overlay", &options.overlay,
                {{"jobset", KubernetesOverlay::kJobSet},
                 {"elastic", KubernetesOverlay::kElastic},
                 {"plain", KubernetesOverlay::kPlain}},
                "jobset: trainer and servers end together; elastic: the number of servers follows "
                "the trainer's need; plain: without JobSet");
  binder.Text("image", &options.image,
              "container image of trainer and servers; empty: the image that make image builds, "
              "tandem:VERSION-cpu or, for GPUs, -cuda");
  binder.Text("claim", &options.claim,
              "PersistentVolumeClaim with models, data and runs; relative paths of the run file "
              "are paths on it");
  binder.Text("queue", &options.queue, "local queue of Kueue; empty: admitted at once");
  binder.Flag(
      "mutual_tls", &options.mutual_tls,
      "gRPC with the certificates of the Secrets tandem-trainer-tls and tandem-rollout-tls");
  binder.Flag("network_policy", &options.network_policy,
              "only the pods of the run, and the monitoring, reach its ports");
  binder.Flag("pod_monitor", &options.pod_monitor, "a PodMonitor for the Prometheus operator");
  binder.Flag("rdma", &options.rdma, "the RDMA device, and the right to pin memory");
  binder.Number("server_cpus", &options.server_cpus, {.min = 0.1}, "cores",
                "CPUs of a server's pod");
  binder.Number("trainer_cpus", &options.trainer_cpus, {.min = 0.1}, "cores",
                "CPUs of a trainer's pod");
  binder.Number("server_memory_gib", &options.server_memory_gib, {.min = 0.1}, "GiB",
                "memory of a server's pod");
  binder.Number("trainer_memory_gib", &options.trainer_memory_gib, {.min = 0.1}, "GiB",
                "memory of a trainer's pod");
  binder.Number("shm_gib", &options.shm_gib, {.min = 0.0625}, "GiB",
                "size of /dev/shm in each pod; NCCL moves data between the GPUs of a node there");
  binder.Integer("max_servers", &options.max_servers, {.min = 1}, "servers",
                 "largest number of servers of the elastic overlay");
  binder.Integer("max_restarts", &options.max_restarts, {.min = 0, .max = 1000}, "restarts",
                 "restarts of a trainer that failed, each from its last checkpoint; disruptions do "
                 "not count");
  binder.Number("token_seconds", &options.token_seconds, {.min = 0, .exclusive_min = true}, "s",
                "longest time of one token; times the tokens of the longest completion, how long a "
                "server may drain");
  binder.Number("step_seconds", &options.step_seconds, {.min = 1}, "s",
                "longest train step; an evicted trainer finishes the step that it is in");
  binder.Number("checkpoint_seconds", &options.checkpoint_seconds, {.min = 1}, "s",
                "longest time to write the checkpoint after that step");
}

void BindSlurm(OptionBinder& binder, SlurmOptions& options) {
  binder.Text("partition", &options.partition,
              "partition of the job; empty: the cluster's default");
  binder.Text("account", &options.account, "account that is charged; empty: your default");
  binder.Text("qos", &options.qos, "quality of service; empty: your default");
  binder.Text("time", &options.time,
              "time limit of one attempt, as sbatch takes it (04:00:00); empty: the partition's. "
              "The job saves before the limit and continues in another attempt");
  binder.Text("gpu_type", &options.gpu_type, "TYPE in --gres=gpu:TYPE:COUNT; empty: any");
  binder.Text("memory", &options.memory,
              "memory of a node, as --mem takes it (200G; 0: all); empty: the cluster's default");
  binder.Integer("server_nodes", &options.server_nodes, {.min = 0, .max = 1024}, "nodes",
                 "nodes for servers alone, in addition to those of the ranks; 0: servers share the "
                 "ranks' nodes");
  binder.Integer("cpus_per_rank", &options.cpus_per_rank, {.min = 1, .max = 1024}, "CPUs",
                 "CPUs of a trainer rank, and its threads if trainer.threads is 0");
  binder.Integer("cpus_per_server", &options.cpus_per_server, {.min = 1, .max = 1024}, "CPUs",
                 "CPUs of a server, and its threads if server.engine.num_threads is 0");
  binder.Flag("exclusive", &options.exclusive, "no other job on these nodes");
  binder.Integer("max_restarts", &options.max_restarts, {.min = 0, .max = 1000}, "attempts",
                 "how often the job is queued again after a failure; an attempt that ends at the "
                 "time limit does not count");
  binder.TextList("sbatch", &options.sbatch, "further options of sbatch: --constraint=h100");
  binder.TextList("setup", &options.setup,
                  "shell lines before anything is started: module load gcc");
  binder.Text("container_image", &options.container_image,
              "image in which servers and ranks run (the Pyxis plugin); empty: no container");
  binder.Text("container_mounts", &options.container_mounts,
              "SOURCE:TARGET,... of the container: the working directory, models and runs");
}

}  // namespace

void BindOptions(OptionBinder& binder, LaunchOptions& options) {
  binder.Integer("num_servers", &options.num_servers, {.min = 1, .max = 64}, "processes",
                 "rollout servers to start");
  binder.Integer("num_ranks", &options.num_ranks, {.min = 1, .max = 8192}, "processes",
                 "trainer ranks in all, which train as one; on one machine they share the cores");
  binder.Integer("ranks_per_node", &options.ranks_per_node, {.min = 0, .max = 64}, "processes",
                 "on a cluster: ranks per node, one per GPU; 0: all on one node");
  binder.Integer(
      "gpus_per_server", &options.gpus_per_server, {.min = 0, .max = 64}, "GPUs",
      "on a cluster: GPUs of one server; 0: one if server.engine.device is cuda, else none");
  binder.Integer("base_port", &options.base_port, {.min = 0, .max = 65535}, "",
                 "server i listens on base_port + i; 0: free ports");
  binder.Text("binaries", &options.binaries,
              "directory of rollout_server and trainer; empty: that of tandem");
  binder.Number("ready_seconds", &options.ready_seconds, {.min = 1, .max = 86400}, "s",
                "how long a server may take to load its model");
  binder.Number(
      "stop_seconds", &options.stop_seconds, {.min = 0, .max = 86400}, "s",
      "how long a process may take to end after SIGTERM (the trainer saves first): the longest "
      "train step and time/checkpoint");
  binder.Integer(
      "max_restarts", &options.max_restarts, {.min = 0, .max = 1e6}, "restarts",
      "on this machine: how often each rollout server, and the trainer with all its ranks, is "
      "restarted after it died; the next death ends the run. 0: the first death ends it");
  binder.Number("restart_delay_seconds", &options.restart_delay_seconds, {.min = 0, .max = 60}, "s",
                "delay before the first restart of a process; doubled for each next, up to 60 s");
  binder.Section("kubernetes", "the run on Kubernetes (`tandem render k8s`, docs/kubernetes.md)",
                 [&](OptionBinder& b) { BindKubernetes(b, options.kubernetes); });
  binder.Section("slurm", "the run on Slurm (`tandem render slurm`, docs/slurm.md)",
                 [&](OptionBinder& b) { BindSlurm(b, options.slurm); });
}

absl::StatusOr<int64_t> NumRankNodes(const LaunchOptions& options) {
  if (options.ranks_per_node == 0) return 1;
  if (options.num_ranks % options.ranks_per_node != 0) {
    return InvalidArgument("launch.num_ranks ", options.num_ranks,
                           " is not a multiple of launch.ranks_per_node ", options.ranks_per_node);
  }
  return options.num_ranks / options.ranks_per_node;
}

std::string ProgramDirectory() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "." : path.parent_path().string();
}

}  // namespace tandem::cli
