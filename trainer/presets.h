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

// Calls `load`, which reads what the user wrote into the options of `binder`, of which `preset` is
// one. Where a preset is named then, its settings are made and `load` is called again, so that the
// user's word stands.
//   INVALID_ARGUMENT  no such preset;  any error of `load`
absl::Status LoadOverPreset(OptionBinder& binder, const std::string& preset,
                            const std::function<absl::Status()>& load);

// What the preset sets, with the defaults and sources, as text for a terminal.
std::string Explain(const Preset& preset);

}  // namespace tandem::trainer
