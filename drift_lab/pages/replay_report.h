// The result of a replay for a terminal and as JSON. Pure.
#pragma once

#include <string>

#include "drift_lab/replay/replay.h"

namespace tandem::drift {

// Tables of at most 116 columns: gradients, tokens, and lengths where some method drops tokens.
std::string ReplayTable(const Replay& replay);

// One object; NaN and unknown bounds are null. Field by field in docs/replay.md.
std::string ReplayJson(const Replay& replay);

}  // namespace tandem::drift
