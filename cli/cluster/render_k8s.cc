// tandem render k8s: a run file as a folder for `kubectl apply -k`.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/cluster/render_kubernetes.h"
#include "cli/io/json_lines.h"
#include "cli/io/subcommand.h"
#include "cli/run_file/run_file.h"
#include "cli/run_file/run_file_flags.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/options/command_line.h"

namespace tandem::cli {
namespace {

struct KubernetesFlags {
  std::string config;
  std::vector<std::string> sets;
  std::string out;
};

absl::Status WriteKubernetes(const KubernetesFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const auto plain, RunFile::Load(flags.config, flags.sets));
  std::vector<std::string> sets = flags.sets;
  sets.push_back(absl::StrCat("server.drain_seconds=", GraceOf(*plain).drain));
  TANDEM_ASSIGN_OR_RETURN(const auto file, RunFile::Load(flags.config, sets));
  TANDEM_ASSIGN_OR_RETURN(const auto files, RenderKubernetes(*file));
  TANDEM_ASSIGN_OR_RETURN(const std::string name, KubernetesName(*file));
  const std::string out = flags.out.empty() ? name + "-k8s" : flags.out;
  std::error_code ignored;
  if (std::filesystem::exists(out, ignored) &&
      !std::filesystem::exists(out + "/kustomization.yaml", ignored) &&
      !std::filesystem::is_empty(out, ignored)) {
    return absl::AlreadyExistsError(
        absl::StrCat(out, " holds other things: name another folder with --out"));
  }
  for (const auto& [path, contents] : files) {
    const std::filesystem::path target = std::filesystem::path(out) / path;
    TANDEM_RETURN_IF_ERROR(MakeDirectories(target.parent_path().string()));
    TANDEM_RETURN_IF_ERROR(WriteFileAtomically(target.string(), contents));
  }
  if (!file->launch().kubernetes.mutual_tls) {
    std::fprintf(
        stderr, "tandem render: warning: gRPC is plaintext inside the cluster; %s\n",
        "launch.kubernetes.mutual_tls=true with certificates is safe (docs/kubernetes.md)");
  }
  std::printf(
      "%s: written. Next:\n  kubectl apply -k %s\n  kubectl get pods -l "
      "app.kubernetes.io/instance=%s\n",
      out.c_str(), out.c_str(), name.c_str());
  return absl::OkStatus();
}

}  // namespace

void AddRenderKubernetesCommand(CLI::App& render, Action& chosen) {
  auto flags = std::make_shared<KubernetesFlags>();
  CLI::App* sub = render.add_subcommand("k8s", "A folder for `kubectl apply -k`");
  AddConfigArgument(sub, flags->config, "run file");
  AddRunSetFlag(sub, flags->sets);
  sub->add_option("--out", flags->out, "folder to write; default: NAME-k8s");
  EndHelp(*sub, "Knobs: launch.kubernetes.* of the run file (docs/configuration.md).",
          "tandem render k8s examples/demo.yaml --out demo-k8s");
  sub->callback([flags, &chosen] {
    chosen = [flags] {
      const absl::Status done = WriteKubernetes(*flags);
      return done.ok() ? 0 : FailUsage(done);
    };
  });
}

}  // namespace tandem::cli
