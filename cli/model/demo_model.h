// The model of `tandem demo`, SmolLM2-135M-Instruct: where it is, and how it is made where it is
// not. The weights come out of a Python package, so that nobody needs an account or the Hub.
#pragma once

#include <filesystem>
#include <string>

#include "absl/status/status.h"

namespace tandem::cli {

// The directory of the model: TREE/models/smollm2-135m-instruct if that is there, as `make setup`
// leaves it in a checkout, else $XDG_CACHE_HOME/tandem/smollm2-135m-instruct (XDG_CACHE_HOME is
// ~/.cache). `tree` has examples/demo.yaml. Thread-safe.
std::filesystem::path DemoModelDirectory(const std::filesystem::path& tree);

// Makes the model in `directory` unless there is one, by `python3 -m tandem_rl.demo_model` (the
// interpreter of DefaultPython), which downloads 100 MB with pip. Says so on standard error, and
// waits for it. Thread-safe.
//   NOT_FOUND  with exit code 3: it could not be made; the command, and what to do
absl::Status MakeDemoModel(const std::filesystem::path& directory);

}  // namespace tandem::cli
