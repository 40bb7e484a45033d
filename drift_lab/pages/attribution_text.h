// The result of an attribution for a terminal and as JSON. Pure.
#pragma once

#include <string>

#include "drift_lab/ablation/attribution.h"

namespace tandem::drift {

// A table of at most 100 columns, with what every number is and its interval.
std::string AttributionTable(const Attribution& attribution);

// One object; NaN and unknown bounds are null. Field by field in docs/attribution.md.
std::string AttributionJson(const Attribution& attribution);

}  // namespace tandem::drift
