// The report's drift by what a token is: metrics.jsonl's drift/by_* objects, over steps and of the
// last step that has them. Used by run_data.cc; page/drift_parts.js draws it. Pure.
#pragma once

#include <vector>

#include "cli/report/run_files.h"

namespace tandem::report {

// {"by_version_lag": {"k3"|"mean_abs_delta": {bucket: [N of [value, low, high] or null]}},
//  "last": {"length": {"step", "buckets": {label: {"tokens", "mean_delta": [value, low, high],
//  ...}}}}}
// `rows` [N]: the lines of metrics.jsonl that are drawn. What is not shaped so is left out.
Json BuildDriftData(const std::vector<const Json*>& rows);

}  // namespace tandem::report
