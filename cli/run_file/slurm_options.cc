#include "cli/run_file/slurm_options.h"

namespace tandem::cli {

void BindOptions(OptionBinder& binder, SlurmOptions& options) {
  binder.Text("partition", &options.partition, "of the job; empty: the cluster's default");
  binder.Text("account", &options.account, "that is charged; empty: your default");
  binder.Text("qos", &options.qos, "quality of service; empty: your default");
  binder.Text(
      "time", &options.time,
      "limit of one attempt, as sbatch takes it (04:00:00); empty: the partition's. The job "
      "saves before it and goes on in another attempt");
  binder.Text("gpu_type", &options.gpu_type, "of --gres=gpu:TYPE:COUNT; empty: any");
  binder.Text("memory", &options.memory,
              "of a node, as --mem takes it (200G; 0: all of it); empty: the cluster's default");
  binder.Integer("server_nodes", &options.server_nodes, {.min = 0, .max = 1024}, "nodes",
                 "for servers alone, beside those of the ranks; 0: they share the ranks' nodes");
  binder.Integer("cpus_per_rank", &options.cpus_per_rank, {.min = 1, .max = 1024}, "CPUs",
                 "of a trainer rank; its threads too where trainer.threads is 0");
  binder.Integer("cpus_per_server", &options.cpus_per_server, {.min = 1, .max = 1024}, "CPUs",
                 "of a server; its threads too where server.engine.num_threads is 0");
  binder.Flag("exclusive", &options.exclusive, "no other job on these nodes");
  binder.Integer("max_restarts", &options.max_restarts, {.min = 0, .max = 1000}, "attempts",
                 "how often the job is queued again after it failed; saving at the time limit and "
                 "going on does not count");
  binder.TextList("sbatch", &options.sbatch, "further options of sbatch: --constraint=h100");
  binder.TextList("setup", &options.setup,
                  "shell lines before anything is started: module load gcc");
  binder.Text("container_image", &options.container_image,
              "run servers and ranks in this image (the Pyxis plugin); empty: in no container");
  binder.Text("container_mounts", &options.container_mounts,
              "SOURCE:TARGET,... of it: the working directory, models and runs");
}

}  // namespace tandem::cli
