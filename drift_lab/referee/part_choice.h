// Which parts of a second set of weights a side has, from what each part alone does to the log-probs.
// Used by judge.cc. Pure.
#pragma once

#include <span>
#include <vector>

#include "drift_lab/referee/residuals.h"

namespace tandem::drift {

// [N][M]: of each part, the log-probs with it less those without.
using Effects = std::vector<std::vector<double>>;

// A shard is a run of neighbouring layers: the run whose effects, added up, explain most of `gap` [M].
// Effects of single layers drown in bf16 where that of a run does not. [N]; none where no run explains
// 3 %.
std::vector<bool> BestRun(std::span<const double> gap, const Effects& effects,
                          const TokenSet& tokens);

// The part that takes away most, then the next, as long as each takes away 3 % of what is left. [N]
std::vector<bool> GreedyParts(std::span<const double> gap, const Effects& effects,
                              const TokenSet& tokens);

}  // namespace tandem::drift
