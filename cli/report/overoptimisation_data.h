// What the report shows of over-optimisation (Gao et al. 2023, arXiv 2210.10760): the reward that
// is trained on (proxy) and the held-out one (gold) of each step, by how far the policy has gone
// from the reference, with the fits of both laws. Pure.
#pragma once

#include <cstdint>
#include <map>

#include "cli/report/run_files.h"

namespace tandem::report {

// `rows`: lines of metrics.jsonl by train step. Null where no step has both reward/gold and a KL to
// the reference.
//
// d = sqrt(KL of a completion), which is kl_reference/k3, of a token, times length/mean. Rewards
// are counted from those of the first such step, where the policy is the reference.
//
//   {"start": {"proxy", "gold"}, "points": [{"step", "d", "proxy", "gold"}],
//    "proxy": FIT, "gold": FIT}
//   FIT: {"better": "best_of_n" | "reinforcement", "laws": {NAME: {"alpha", "beta", "alpha_error",
//   "beta_error", "residual_squares", "peak_distance" (null: none), "curve": [{"d", "reward"}]}}},
//   or {"error": why there is none}
Json BuildOveroptimisationData(const std::map<int64_t, Json>& rows);

}  // namespace tandem::report
