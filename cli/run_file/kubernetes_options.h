// KubernetesOptions: where and how a run is placed on Kubernetes; section `launch.kubernetes` of a
// run file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/options/options.h"

namespace tandem::cli {

enum class KubernetesOverlay { kJobSet, kElastic, kPlain };

struct KubernetesOptions {
  std::string name;  // of the run's objects; empty: the run's
  KubernetesOverlay overlay = KubernetesOverlay::kJobSet;
  std::string image;  // empty: tandem:VERSION-cpu or -cuda, as `make image` tags them
  std::string claim = "tandem-workspace";
  std::string queue;  // of Kueue; empty: none
  bool mutual_tls = false;
  bool network_policy = true;
  bool pod_monitor = false;
  bool rdma = false;
  double server_cpus = 4, trainer_cpus = 4;
  double server_memory_gib = 8, trainer_memory_gib = 16;
  double shm_gib = 1;
  int64_t max_servers = 8;  // of the elastic overlay
  int64_t max_restarts = 3;
  double token_seconds = 0.05;
  double step_seconds = 120;
  double checkpoint_seconds = 60;
};
void BindOptions(OptionBinder& binder, KubernetesOptions& options);

}  // namespace tandem::cli
