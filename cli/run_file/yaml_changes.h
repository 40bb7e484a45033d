// ChangedKnobs: what a resolved configuration changes, for the plan of a dry run. Pure.
#pragma once

#include <string>
#include <vector>

namespace tandem::cli {

// "trainer.steps: 3  (default 100)" for every knob whose value differs, in the order of the files.
// Both are OptionBinder::ToYaml of the same bindings: one line a knob or section, the same ones.
std::vector<std::string> ChangedKnobs(const std::string& defaults, const std::string& resolved);

}  // namespace tandem::cli
