// WeightVersion: the number of train steps that produced a set of weights; 0 is the starting
// checkpoint.
#pragma once

#include <compare>
#include <cstdint>

namespace tandem {

struct WeightVersion {
  int64_t value = 0;

  WeightVersion Next() const { return {value + 1}; }
  friend auto operator<=>(const WeightVersion&, const WeightVersion&) = default;
};

// A run of consecutive tokens that were sampled under one version.
struct VersionSpan {
  WeightVersion version;
  int32_t num_tokens = 0;  // at least 1

  friend bool operator==(const VersionSpan&, const VersionSpan&) = default;
};

}  // namespace tandem
