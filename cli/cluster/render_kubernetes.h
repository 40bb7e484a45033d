// RenderKubernetes: a run file as a folder for `kubectl apply -k`. The folder holds the project's
// base, overlays and components as they are in deploy/kubernetes (they are embedded in this
// binary), the resolved run file, and one kustomization.yaml with the changes for this run. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "cli/run_file/run_file.h"

namespace tandem::cli {

// How long pods may take to end, in seconds, from the longest completion and step of the run.
struct KubernetesGrace {
  int64_t drain =
      0;  // of a server: longest completion x token_seconds, at least server.drain_seconds
  int64_t server = 0;   // drain + 30
  int64_t trainer = 0;  // step_seconds + checkpoint_seconds + 30
};
KubernetesGrace GraceOf(const RunFile& file);

// The first part of the names of the run's objects.
//   INVALID_ARGUMENT  it is not a DNS label, or too long for the names made of it
absl::StatusOr<std::string> KubernetesName(const RunFile& file);

// Returns relative path -> contents.
//   INVALID_ARGUMENT  an option (named) that cannot work there: a name, a path of this machine, a
//                     number of ranks that does not fill its nodes, a deterministic run with
//                     servers that come and go
absl::StatusOr<std::map<std::string, std::string>> RenderKubernetes(const RunFile& file);

// The files of deploy/kubernetes at build time, by their path below it ("base/kustomization.yaml");
// empty if there is none. cmake/embed.cmake generates both functions.
std::string_view FindKubernetesFile(std::string_view name);
std::span<const std::string_view> FindKubernetesFileNames();

}  // namespace tandem::cli
