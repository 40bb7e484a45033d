// The result of an attribution as a table for a terminal, as JSON, and as the data of its HTML
// page. Pure, except for the decoding of ids, which the caller does.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "drift_lab/ablation/attribution.h"

namespace tandem::drift {

// A table of at most 100 columns, with the interval of every number.
std::string AttributionTable(const Attribution& attribution);

// One object; NaN and unknown bounds are null. docs/attribution.md describes the fields.
std::string AttributionJson(const Attribution& attribution);

struct PageLimits {
  int64_t max_cells = 60000;  // of the heat map: above, it has every n-th completion, and says so
  int64_t max_columns =
      1024;               // positions of the heat map: those after are cut, and the page says so
  int64_t max_bins = 64;  // of the curves over positions
  int64_t num_worst = 30;
};

// The text of ids, with invalid UTF-8 as U+FFFD.
using DecodeIds = std::function<std::string(std::span<const int32_t>)>;

// The data that cli/report/page/attribution*.js draws: AttributionJson, with
//   "about"     where the capture comes from: run, model, sampling, servers, trainer
// and, if the capture is comparable,
//   "positions" {"from", "to": [bins], "tokens": [bins],
//               "mean", "mean_abs": [bins] of [value, low, high],
//               "parts": {name: {"mean": [bins], "mean_abs": [bins]}}}; the mean_abs of a factor is
//               that of the factor alone
//   "map"       {"every": n-th completion, "columns", "cut_tokens",
//               "parts": [names of those that are not 0 everywhere], "texts": [texts],
//               "rows": [{"completion", "group", "index", "masked", "advantage", "reward",
//               "tokens": [indices into texts], "versions", "behaviour", "delta": [],
//               "parts": {name: []}}]}
//   "worst"     by falling abs(delta): [{"completion", "group", "index", "position", "version",
//               "before", "token", "after", "behaviour", "proximal", "delta",
//               "parts": {name: value}}]
// Per-token numbers have four significant digits; null where a step could not score the token.
std::string AttributionPageData(const Attribution& attribution, const DecodeIds& decode,
                                const PageLimits& limits = {});

}  // namespace tandem::drift
