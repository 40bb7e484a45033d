// ForeignOptions: section `trainer.foreign` of a run file: how a run uses servers that are not
// Tandem's. Used by trainer_options.cc and foreign_server.cc.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/options/options.h"

namespace tandem::trainer {

// What becomes of completions in progress when new weights come.
enum class ForeignInFlight { kDrain, kAbort };

struct ForeignOptions {
  std::string weights_dir;  // empty: foreign_weights in the run directory
  ForeignInFlight in_flight = ForeignInFlight::kDrain;
  bool checksums = true;
};
void BindOptions(OptionBinder& binder, ForeignOptions& options);

// The directory for a run in `run_directory`.
std::string WeightsDirOf(const ForeignOptions& options, const std::string& run_directory);

}  // namespace tandem::trainer
