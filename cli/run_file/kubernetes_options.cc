#include "cli/run_file/kubernetes_options.h"

namespace tandem::cli {

void BindOptions(OptionBinder& binder, KubernetesOptions& options) {
  binder.Text("name", &options.name,
              "first part of the names of the run's objects, a DNS label of at most 18 letters; "
              "empty: trainer.run.name");
  binder.Choice("overlay", &options.overlay,
                {{"jobset", KubernetesOverlay::kJobSet},
                 {"elastic", KubernetesOverlay::kElastic},
                 {"plain", KubernetesOverlay::kPlain}},
                "jobset: trainer and servers end as one; elastic: servers come and go with the "
                "trainer's need; plain: without JobSet");
  binder.Text("image", &options.image,
              "container image of trainer and servers; empty: the one that make image builds, "
              "tandem:VERSION-cpu or, for GPUs, -cuda");
  binder.Text(
      "claim", &options.claim,
      "PersistentVolumeClaim with models, data and runs; relative paths of the run file are "
      "on it");
  binder.Text("queue", &options.queue, "local queue of Kueue; empty: admitted at once");
  binder.Flag(
      "mutual_tls", &options.mutual_tls,
      "gRPC with the certificates of the Secrets tandem-trainer-tls and tandem-rollout-tls");
  binder.Flag("network_policy", &options.network_policy,
              "only the pods of the run, and the monitoring, reach its ports");
  binder.Flag("pod_monitor", &options.pod_monitor, "a PodMonitor for the Prometheus operator");
  binder.Flag("rdma", &options.rdma, "the RDMA device, and the right to pin memory");
  binder.Number("server_cpus", &options.server_cpus, {.min = 0.1}, "cores", "of a server's pod");
  binder.Number("trainer_cpus", &options.trainer_cpus, {.min = 0.1}, "cores", "of a trainer's pod");
  binder.Number("server_memory_gib", &options.server_memory_gib, {.min = 0.1}, "GiB",
                "of a server's pod");
  binder.Number("trainer_memory_gib", &options.trainer_memory_gib, {.min = 0.1}, "GiB",
                "of a trainer's pod");
  binder.Number("shm_gib", &options.shm_gib, {.min = 0.0625}, "GiB",
                "of /dev/shm of each pod: NCCL moves data between the GPUs of a node there");
  binder.Integer("max_servers", &options.max_servers, {.min = 1}, "servers",
                 "most that the elastic overlay grows to");
  binder.Integer(
      "max_restarts", &options.max_restarts, {.min = 0, .max = 1000}, "restarts",
      "of a trainer that failed, each from its last checkpoint; disruptions do not count");
  binder.Number(
      "token_seconds", &options.token_seconds, {.min = 0, .exclusive_min = true}, "s",
      "longest time of one token: with sampling.max_new_tokens how long a server may drain");
  binder.Number("step_seconds", &options.step_seconds, {.min = 1}, "s",
                "longest train step: an evicted trainer ends the one it is in");
  binder.Number("checkpoint_seconds", &options.checkpoint_seconds, {.min = 1}, "s",
                "longest time to write a checkpoint, then");
}

}  // namespace tandem::cli
