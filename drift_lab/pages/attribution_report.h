// AttributionPage: the data of the HTML page of an attribution: its JSON, and what only a page
// shows: curves over positions, the tokens themselves and the worst of them in context. Pure but
// for the decoding of ids, which is the caller's. Drawn by
// cli/report/page/attribution*.js.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "drift_lab/ablation/attribution.h"

namespace tandem::drift {

struct PageLimits {
  int64_t max_cells =
      60000;  // of the heat map: beyond, every n-th completion, and the page says so
  int64_t max_columns =
      1024;  // positions of the heat map: what lies behind is cut, and the page says so
  int64_t max_bins = 64;  // of the curves over positions
  int64_t num_worst = 30;
};

// Text of ids, invalid UTF-8 as U+FFFD.
using DecodeIds = std::function<std::string(std::span<const int32_t>)>;

// AttributionJson, with
//   "about"     where the capture comes from: run, model, sampling, servers, trainer
// and, when it is comparable,
//   "positions" {"from", "to": [bins], "tokens": [bins], "mean", "mean_abs": [bins] of [value, low,
//   high],
//               "parts": {name: {"mean": [bins], "mean_abs": [bins]}}}, a factor's mean_abs alone
//   "map"       {"every": n-th completion, "columns", "cut_tokens", "parts": [names of those that
//   are
//               somewhere not 0], "texts": [texts], "rows": [{"completion", "group", "index",
//               "masked", "advantage", "reward", "tokens": [into texts], "versions", "behaviour",
//               "delta": [], "parts": {name: []}}]}
//   "worst"     by falling abs(delta): [{"completion", "group", "index", "position", "version",
//               "before", "token", "after", "behaviour", "proximal", "delta", "parts": {name:
//               value}}]
// Per-token numbers have four significant digits; null where a rung could not score.
std::string AttributionPageData(const Attribution& attribution, const DecodeIds& decode,
                                const PageLimits& limits = {});

}  // namespace tandem::drift
