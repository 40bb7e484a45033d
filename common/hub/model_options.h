// Models that options name (trainer.model, server.model, reward.model.paths): pinned to a commit
// where a run begins, so that its config.yaml and every process of it name the same weights, and
// replaced by directories in the process that reads them. Used by `tandem run`, the trainer and the
// rollout server.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/hub/hub_settings.h"

namespace tandem::hub {

struct ModelOption {
  std::string name;              // "trainer.model"
  std::string* value = nullptr;  // may be empty: no model
};

// Replaces each name on the Hub by NAME@COMMIT. `before` is the YAML of a configuration that was
// pinned earlier ("" for a new run): an option that has the same name there, with another revision
// than a commit, gets that commit again, and `notes` says where the revision has moved since. Values
// that are no names, and those that cannot be resolved, stay as they are.
//   NOT_FOUND  one line for each option that cannot be resolved (exit code 3)
absl::Status PinModels(const std::vector<ModelOption>& options, const std::string& before,
                       const HubSettings& settings, std::vector<std::string>* notes);

// Replaces each name on the Hub by the snapshot's directory. Paths stay as they are, whether
// something is there or not: their readers say.
//   NOT_FOUND  as ResolveModel, with the option's name (exit code 3)
absl::Status FindModels(const std::vector<ModelOption>& options, const HubSettings& settings);

}  // namespace tandem::hub
