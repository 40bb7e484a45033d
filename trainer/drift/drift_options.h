// ProbeOptions, SplitOptions: which drift a run measures beside that of its steps, and how often
// (docs/attribution.md).
#pragma once

#include <cstdint>
#include <string>

#include "common/options/options.h"

namespace tandem::trainer {

struct ProbeOptions {
  int64_t every = 20;  // weight versions; 0: off
  int64_t completions = 16;
  std::string file;  // empty: the first completions of the run

  bool Due(int64_t version) const { return every > 0 && version % every == 0; }
  // Will a version up to `oldest_lag` later be compared with this one?
  bool Needed(int64_t version, int64_t oldest_lag) const {
    for (int64_t lag = 0; lag <= oldest_lag; ++lag) {
      if (Due(version + lag)) return true;
    }
    return false;
  }
};
void BindOptions(OptionBinder& binder, ProbeOptions& options);

struct SplitOptions {
  int64_t every = 100;  // train steps; 0: off

  bool Due(int64_t step) const { return every > 0 && step % every == 0; }
};
void BindOptions(OptionBinder& binder, SplitOptions& options);

}  // namespace tandem::trainer
