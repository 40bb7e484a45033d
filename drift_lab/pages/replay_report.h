// The result of a replay as tables for a terminal and as JSON. Pure.
#pragma once

#include <string>

#include "drift_lab/replay/replay.h"

namespace tandem::drift {

// Tables of at most 116 columns: gradients; tokens; and, if some method drops tokens, completion
// lengths.
std::string ReplayTable(const Replay& replay);

// One object; NaN and unknown bounds are null. docs/replay.md describes the fields.
std::string ReplayJson(const Replay& replay);

}  // namespace tandem::drift
