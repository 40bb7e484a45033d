// RenderKubernetes: a run file as a folder for `kubectl apply -k`: the project's own base, overlay
// and components as they are in deploy/kubernetes (they travel inside this binary), the resolved
// run file, and one kustomization.yaml with what this run changes. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "cli/run_file/run_file.h"

namespace tandem::cli {

// How long pods may take to end, from the longest completion and step of the run (seconds).
struct KubernetesGrace {
  int64_t drain = 0;   // of a server: max_new_tokens x token_seconds, at least server.drain_seconds
  int64_t server = 0;  // drain + 30
  int64_t trainer = 0;  // step_seconds + checkpoint_seconds + 30
};
KubernetesGrace GraceOf(const RunFile& file);

// First part of the names of the run's objects.
//   INVALID_ARGUMENT  not a DNS label, or too long for the names made of it
absl::StatusOr<std::string> KubernetesName(const RunFile& file);

// Relative path -> contents.
//   INVALID_ARGUMENT  a knob that cannot be carried out there (named): a name, a path of this
//   machine, more
//                     ranks than nodes hold, a deterministic run with servers that come and go
absl::StatusOr<std::map<std::string, std::string>> RenderKubernetes(const RunFile& file);

}  // namespace tandem::cli
