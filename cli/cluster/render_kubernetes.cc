#include "cli/cluster/render_kubernetes.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/io/json_lines.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"

namespace tandem::cli {
namespace {

// "NAME-tandem-trainer-0-0.NAME-tandem" must be a label value, of at most 63 letters.
constexpr size_t kLongestName = 18;
constexpr int64_t kSpareSeconds = 30;
constexpr char kJobSetPod[] = "/spec/replicatedJobs/%d/template/spec/template/spec";
constexpr char kPod[] = "/spec/template/spec";

// A JSON string is also a YAML string.
std::string Quote(const std::string& text) { return TextToJson(text); }

struct Plan {
  std::string name;
  KubernetesOverlay overlay = KubernetesOverlay::kJobSet;
  int64_t num_servers = 1;
  int64_t trainer_pods = 1;
  int64_t ranks_per_pod = 1;
  int64_t gpus_per_server = 0, gpus_per_trainer = 0;
  KubernetesGrace grace;
};

const char* OverlayName(KubernetesOverlay overlay) {
  constexpr const char* kNames[] = {"jobset", "elastic", "plain"};
  return kNames[static_cast<size_t>(overlay)];
}

absl::Status CheckPaths(const RunFile& file) {
  const trainer::TrainerOptions& trainer = file.trainer();
  std::vector<std::pair<const char*, std::string>> paths = {
      {"server.model", file.server().model},
      {"trainer.model", trainer.model},
      {"trainer.data.train", trainer.data.train},
      {"trainer.data.eval", trainer.data.eval},
      {"trainer.data.tools_file", trainer.data.tools_file},
      {"trainer.probe.file", trainer.probe.file},
      {"trainer.run.out", trainer.out}};
  for (const auto& [path, weight] : trainer.data.mixture) {
    paths.emplace_back("trainer.data.mixture", path);
  }
  for (std::string& path : trainer::PythonFiles(trainer.reward.python)) {
    paths.emplace_back("trainer.reward.python.functions", std::move(path));
  }
  for (std::string& path : trainer::EnvironmentFiles(trainer.environment)) {
    paths.emplace_back("trainer.environment", std::move(path));
  }
  for (const auto& [option, path] : paths) {
    if (!path.starts_with('/') || path.starts_with("/workspace/")) continue;
    return InvalidArgument(option, " is ", path, ", a path of this machine: pods see the volume ",
                           file.launch().kubernetes.claim,
                           " at /workspace; put it there and name it by its path on the volume");
  }
  return absl::OkStatus();
}

absl::StatusOr<Plan> MakePlan(const RunFile& file) {
  const LaunchOptions& launch = file.launch();
  Plan plan = {.overlay = launch.kubernetes.overlay,
               .num_servers = launch.num_servers,
               .ranks_per_pod = launch.ranks_on_each_node(),
               .grace = GraceOf(file)};
  TANDEM_ASSIGN_OR_RETURN(plan.name, KubernetesName(file));
  TANDEM_RETURN_IF_ERROR(CheckPaths(file));
  TANDEM_ASSIGN_OR_RETURN(plan.trainer_pods, NumRankNodes(launch));
  if (file.server().engine.device == Device::kCuda) {
    plan.gpus_per_server = std::max<int64_t>(1, launch.gpus_per_server);
  }
  if (file.trainer().learner.device == Device::kCuda) plan.gpus_per_trainer = plan.ranks_per_pod;
  if (file.trainer().deterministic && plan.overlay != KubernetesOverlay::kJobSet) {
    return InvalidArgument(
        "trainer.deterministic needs the same servers from start to end, and overlay ",
        OverlayName(plan.overlay), " finds them by name: use overlay jobset");
  }
  return plan;
}

std::string Servers(const Plan& plan) {
  if (plan.overlay != KubernetesOverlay::kJobSet) {
    return absl::StrCat("dns:", plan.name, "-tandem-rollout-all:50051");
  }
  std::vector<std::string> addresses;
  for (int64_t i = 0; i < plan.num_servers; ++i) {
    addresses.push_back(
        absl::StrCat(plan.name, "-tandem-rollout-", i, "-0.", plan.name, "-tandem:50051"));
  }
  return absl::StrJoin(addresses, ",");
}

// The image that the run file names, or the one that `make image` builds for its devices.
std::string ImageOf(const RunFile& file) {
  if (!file.launch().kubernetes.image.empty()) return file.launch().kubernetes.image;
  const bool on_device = file.server().engine.device == Device::kCuda ||
                         file.trainer().learner.device == Device::kCuda;
  return absl::StrCat("tandem:", std::string(ProjectVersion()), on_device ? "-cuda" : "-cpu");
}

// One entry of the list `images` of a kustomization: the name and the tag or digest of the image.
std::string ImageEntry(std::string image) {
  std::string entry = "  - name: tandem\n";
  std::string digest;
  if (const size_t at = image.find('@'); at != std::string::npos) {
    digest = image.substr(at + 1);
    image.resize(at);
  }
  const size_t colon = image.rfind(':');
  const size_t slash = image.rfind('/');
  const bool has_tag = colon != std::string::npos && (slash == std::string::npos || colon > slash);
  absl::StrAppend(&entry, "    newName: ", Quote(image.substr(0, has_tag ? colon : image.size())),
                  "\n");
  if (!digest.empty()) {
    absl::StrAppend(&entry, "    digest: ", Quote(digest), "\n");
  } else {
    absl::StrAppend(&entry, "    newTag: ", Quote(has_tag ? image.substr(colon + 1) : "latest"),
                    "\n");
  }
  return entry;
}

// A JSON patch (RFC 6902) of a kustomization, for the objects that `target` selects.
class Patch {
 public:
  explicit Patch(const std::string& target)
      : text_(absl::StrCat("  - target: ", target, "\n    patch: |-\n")) {}

  Patch& Do(const char* op, const std::string& path, const std::string& value) {
    absl::StrAppend(&text_, "      - {op: ", op, ", path: ", path, ", value: ", value, "}\n");
    return *this;
  }

  // Changes what the pods of both roles have. `pod` is the path of the pod's spec, which has one
  // container.
  Patch& Pod(const std::string& pod, double cpus, double memory_gib, double shm_gib, int64_t gpus,
             int64_t grace, const std::string& claim) {
    const std::string container = absl::StrCat(pod, "/containers/0");
    for (const char* const kind : {"requests", "limits"}) {
      const std::string of = absl::StrCat(container, "/resources/", kind);
      Do("replace", of + "/cpu", Quote(absl::StrFormat("%gm", std::ceil(cpus * 1000))));
      Do("replace", of + "/memory", Quote(absl::StrFormat("%gMi", std::ceil(memory_gib * 1024))));
      if (gpus > 0) Do("add", of + "/nvidia.com~1gpu", Quote(absl::StrCat(gpus)));
    }
    if (gpus > 0) {
      Do("add", pod + "/tolerations",
         "[{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]");
    }
    Do("replace", pod + "/terminationGracePeriodSeconds", absl::StrCat(grace));
    // The order of the volumes in deploy/kubernetes/base is run, workspace, tls, shm, tmp.
    Do("replace", pod + "/volumes/1/persistentVolumeClaim/claimName", Quote(claim));
    Do("replace", pod + "/volumes/3/emptyDir/sizeLimit",
       Quote(absl::StrFormat("%gMi", std::ceil(shm_gib * 1024))));
    return *this;
  }

  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// `job` and `pod` are the paths of the trainer's Job spec and of its pod's spec.
void PatchTrainer(const RunFile& file, const Plan& plan, const std::string& job,
                  const std::string& pod, Patch& patch) {
  const KubernetesOptions& options = file.launch().kubernetes;
  patch.Do("replace", job + "/completions", absl::StrCat(plan.trainer_pods));
  patch.Do("replace", job + "/parallelism", absl::StrCat(plan.trainer_pods));
  patch.Do("replace", job + "/backoffLimit",
           absl::StrCat(options.max_restarts * plan.trainer_pods));
  patch.Pod(pod, options.trainer_cpus, options.trainer_memory_gib, options.shm_gib,
            plan.gpus_per_trainer, plan.grace.trainer, options.claim);
  if (plan.ranks_per_pod > 1) {
    patch.Do("replace", pod + "/containers/0/command",
             absl::StrCat("[/usr/local/bin/tandem, ranks, --per-node=", plan.ranks_per_pod,
                          ", --, /usr/local/bin/trainer]"));
  }
}

void PatchServer(const RunFile& file, const Plan& plan, const std::string& pod, Patch& patch) {
  const KubernetesOptions& options = file.launch().kubernetes;
  patch.Pod(pod, options.server_cpus, options.server_memory_gib, options.shm_gib,
            plan.gpus_per_server, plan.grace.server, options.claim);
}

std::string Patches(const RunFile& file, const Plan& plan) {
  std::string text;
  const std::string trainer_pod = absl::StrFormat(kJobSetPod, 0),
                    server_pod = absl::StrFormat(kJobSetPod, 1);
  if (plan.overlay == KubernetesOverlay::kPlain) {
    Patch patch("{kind: Job}");
    PatchTrainer(file, plan, "/spec", kPod, patch);
    patch.Do("replace", absl::StrCat(kPod, "/subdomain"), Quote(plan.name + "-tandem-trainer"));
    text += patch.text();
  } else {
    Patch patch("{kind: JobSet}");
    PatchTrainer(file, plan, "/spec/replicatedJobs/0/template/spec", trainer_pod, patch);
    if (plan.overlay == KubernetesOverlay::kJobSet) {
      patch.Do("replace", "/spec/replicatedJobs/1/replicas", absl::StrCat(plan.num_servers));
      PatchServer(file, plan, server_pod, patch);
    }
    text += patch.text();
  }
  if (plan.overlay != KubernetesOverlay::kJobSet) {
    Patch patch("{kind: Deployment}");
    patch.Do("replace", "/spec/replicas", absl::StrCat(plan.num_servers));
    PatchServer(file, plan, kPod, patch);
    text += patch.text();
  }
  if (plan.overlay == KubernetesOverlay::kElastic) {
    const int64_t most = std::max(plan.num_servers, file.launch().kubernetes.max_servers);
    text += Patch("{kind: HorizontalPodAutoscaler}")
                .Do("replace", "/spec/maxReplicas", absl::StrCat(most))
                .Do("add", "/spec/metrics/0/external/metric/selector",
                    absl::StrCat("{matchLabels: {app_kubernetes_io_instance: ", plan.name, "}}"))
                .text();
  }
  if (const std::string& queue = file.launch().kubernetes.queue; !queue.empty()) {
    text += Patch("{kind: JobSet|Job|Deployment}")
                .Do("add", "/metadata/labels/kueue.x-k8s.io~1queue-name", Quote(queue))
                .text();
  }
  // The volume outlives runs, so it is created once and not as a part of a run.
  text +=
      "  - target: {kind: PersistentVolumeClaim, name: tandem-workspace}\n    patch: |-\n"
      "      $patch: delete\n      apiVersion: v1\n      kind: PersistentVolumeClaim\n"
      "      metadata: {name: tandem-workspace}\n";
  return text;
}

std::string Components(const KubernetesOptions& options) {
  std::string text;
  const auto add = [&](bool wanted, const char* name) {
    if (wanted) absl::StrAppend(&text, "  - kubernetes/components/", name, "\n");
  };
  add(!options.queue.empty(), "kueue");
  add(options.rdma, "rdma");
  add(options.network_policy, "network-policy");
  add(options.mutual_tls, "mutual-tls");
  add(options.pod_monitor, "pod-monitor");
  return text.empty() ? "" : "components:\n" + text;
}

// Labels that distinguish the pods of two runs in one namespace.
std::string Labels(const Plan& plan) {
  return absl::StrCat(
      "labels:\n  - pairs: {app.kubernetes.io/instance: ", plan.name,
      "}\n    includeSelectors: true\n    fields:\n",
      "      - {kind: JobSet, path: spec/replicatedJobs/template/spec/template/metadata/labels, "
      "create: true}\n",
      "      - {kind: JobSet, path: spec/replicatedJobs/template/spec/template/spec/"
      "topologySpreadConstraints/labelSelector/matchLabels}\n",
      "      - {kind: PodMonitor, path: spec/selector/matchLabels}\n");
}

std::string Kustomization(const RunFile& file, const Plan& plan) {
  const KubernetesOptions& options = file.launch().kubernetes;
  std::string text = absl::StrCat(
      "# ", file.run_directory(),
      ": made by `tandem render k8s`. kubectl apply -k . starts it, kubectl delete -k . ends it.\n",
      "# Grace of a server: ", plan.grace.drain, " s to drain (", LongestCompletion(file.trainer()),
      " tokens x ", options.token_seconds, " s, at least server.drain_seconds) + ", kSpareSeconds,
      " s = ", plan.grace.server, " s.\n", "# Grace of the trainer: ", options.step_seconds,
      " s for a step + ", options.checkpoint_seconds, " s for a checkpoint + ", kSpareSeconds,
      " s = ", plan.grace.trainer, " s.\n",
      "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n",
      "namePrefix: ", plan.name, "-\n", "resources:\n  - kubernetes/overlays/",
      OverlayName(plan.overlay), "\n", Components(options), Labels(plan));
  absl::StrAppend(
      &text,
      "configMapGenerator:\n  - name: tandem-run\n    behavior: replace\n    files: [run.yaml]\n",
      "  - name: tandem-launch\n    behavior: merge\n    literals:\n",
      "      - WORLD_SIZE=", plan.trainer_pods, "\n      - ", Quote("SERVERS=" + Servers(plan)),
      "\n");
  if (plan.overlay == KubernetesOverlay::kPlain) {
    absl::StrAppend(&text, "      - MASTER_ADDR=", plan.name, "-tandem-trainer-0.", plan.name,
                    "-tandem-trainer\n");
  }
  absl::StrAppend(&text, "images:\n", ImageEntry(ImageOf(file)), "patches:\n", Patches(file, plan));
  return text;
}

}  // namespace

KubernetesGrace GraceOf(const RunFile& file) {
  const KubernetesOptions& options = file.launch().kubernetes;
  const double longest =
      static_cast<double>(LongestCompletion(file.trainer())) * options.token_seconds;
  KubernetesGrace grace;
  grace.drain = static_cast<int64_t>(std::ceil(std::max(file.server().drain_seconds, longest)));
  grace.server = grace.drain + kSpareSeconds;
  grace.trainer =
      static_cast<int64_t>(std::ceil(options.step_seconds + options.checkpoint_seconds)) +
      kSpareSeconds;
  return grace;
}

absl::StatusOr<std::string> KubernetesName(const RunFile& file) {
  const std::string& given = file.launch().kubernetes.name;
  std::string name = given.empty() ? absl::AsciiStrToLower(file.trainer().run_name) : given;
  if (given.empty()) std::ranges::replace(name, '_', '-');
  const bool plain = std::ranges::all_of(name, [](unsigned char c) {
    return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-';
  });
  if (name.empty() || !plain || !absl::ascii_islower(static_cast<unsigned char>(name.front())) ||
      name.back() == '-' || name.size() > kLongestName) {
    return InvalidArgument(
        given.empty() ? "trainer.run.name" : "launch.kubernetes.name", " '", name,
        "' cannot be part of the names of objects: set launch.kubernetes.name to at most ",
        kLongestName, " lower case letters, digits and '-', a letter first");
  }
  return name;
}

absl::StatusOr<std::map<std::string, std::string>> RenderKubernetes(const RunFile& file) {
  TANDEM_ASSIGN_OR_RETURN(const Plan plan, MakePlan(file));
  std::map<std::string, std::string> files;
  for (const std::string_view name : FindKubernetesFileNames()) {
    files[absl::StrCat("kubernetes/", std::string(name))] = FindKubernetesFile(name);
  }
  files["kustomization.yaml"] = Kustomization(file, plan);
  files["run.yaml"] = file.ToYaml();
  return files;
}

}  // namespace tandem::cli
