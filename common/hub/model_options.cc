#include "common/hub/model_options.h"

#include <yaml-cpp/yaml.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/hub/resolve.h"

namespace tandem::hub {
namespace {

// The values of an option in a configuration: one of a text, several of a list, none without it.
std::vector<std::string> ValuesIn(const std::string& yaml, const std::string& option) {
  std::vector<std::string> values;
  try {
    YAML::Node node = YAML::Load(yaml);
    for (const absl::string_view part : absl::StrSplit(option, '.')) {
      if (!node.IsMap()) return values;
      node.reset(node[std::string(part)]);
    }
    if (node.IsScalar()) values.push_back(node.Scalar());
    if (node.IsSequence()) {
      for (const YAML::Node& entry : node) values.push_back(entry.Scalar());
    }
  } catch (const YAML::Exception&) {
    values.clear();  // a damaged file pins nothing; its readers report it
  }
  return values;
}

// The value among those of before that names the same model.
std::string SameModelIn(const std::vector<std::string>& before, const std::string& value) {
  const std::string id = value.substr(0, value.find('@'));
  for (const std::string& other : before) {
    if (other.substr(0, other.find('@')) == id) return other;
  }
  return "";
}

}  // namespace

absl::Status PinModels(const std::vector<ModelOption>& options, const std::string& before,
                       const HubSettings& settings, std::vector<std::string>* notes) {
  std::vector<std::string> missing;
  for (const ModelOption& option : options) {
    if (!IsNameOnHub(*option.value)) continue;
    std::string moved;
    const auto found = ResolveModelAsBefore(
        *option.value, SameModelIn(ValuesIn(before, option.name), *option.value), settings, &moved);
    if (!found.ok()) {
      missing.push_back(absl::StrCat(option.name, ": ", found.status().message()));
      continue;
    }
    if (!moved.empty()) notes->push_back(absl::StrCat(option.name, ": ", moved));
    *option.value = found->Pinned();
  }
  if (missing.empty()) return absl::OkStatus();
  return trainer::WithExitCode(NotFound(absl::StrJoin(missing, "\n")), ExitCode::kBadModelOrData);
}

absl::Status FindModels(const std::vector<ModelOption>& options, const HubSettings& settings) {
  for (const ModelOption& option : options) {
    if (!IsNameOnHub(*option.value)) continue;
    const auto found = ResolveModel(*option.value, settings);
    if (!found.ok()) {
      return trainer::WithExitCode(
          absl::Status(found.status().code(),
                       absl::StrCat(option.name, ": ", found.status().message())),
          ExitCode::kBadModelOrData);
    }
    *option.value = found->path;
  }
  return absl::OkStatus();
}

}  // namespace tandem::hub
