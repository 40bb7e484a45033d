// Presets: the algorithms of the field as settings of a run file (trainer.preset: dapo). A preset
// expands to ordinary options, which the resolved configuration shows and which whoever writes the
// run file may override. `tandem run --explain-preset NAME` and docs/algorithms.md are made of this
// table.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/options/options.h"

namespace tandem::trainer {

struct PresetSetting {
  std::string_view name, value;  // below "trainer."
  std::string_view why;          // where the value comes from
};

struct Preset {
  std::string_view name;
  std::string_view title;
  std::string_view source;  // paper, with its arXiv number
  std::string_view needs;   // models and rollouts, beside the policy and one group per prompt
  std::string_view when;    // to use it
  std::span<const PresetSetting> settings;
};

// In the order of docs/algorithms.md.
std::span<const Preset> Presets();

// "grpo, dr_grpo, ..."
std::string PresetNames();

//   NOT_FOUND  no such preset; the message lists the names
absl::StatusOr<const Preset*> FindPreset(std::string_view name);

// Reads what the user wrote into the options of `binder`, of which `preset` is one: `load_file` the
// run file, `load_sets` the overrides of the command line. The settings of a preset that the file
// names come before the rest of the file; those of one that an override names come after the file
// and before the other overrides. So an option that was written where the preset was named stands.
//   INVALID_ARGUMENT  no such preset;  any error of `load_file` and `load_sets`
using LoadOptions = std::function<absl::Status()>;
absl::Status LoadOverPreset(OptionBinder& binder, const std::string& preset,
                            const LoadOptions& load_file, const LoadOptions& load_sets);

// What the preset sets, with the defaults and sources, as text for a terminal.
std::string Explain(const Preset& preset);

}  // namespace tandem::trainer
