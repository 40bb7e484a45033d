// The data of a report: JSON objects that page/*.js draw. report.cc uses them.
#pragma once

#include <cstdint>
#include <vector>

#include "cli/report/run_files.h"

namespace tandem::report {

struct SampleLimits {
  int64_t max_groups_per_step = 4;
  int64_t max_tokens_per_completion = 600;  // further tokens are cut and counted on the page
  int64_t num_worst_tokens = 20;
  int64_t max_worst_token_steps = 200;  // newest steps that are searched for worst tokens
};

struct DataLimits {
  int64_t max_steps =
      1500;  // if there are more train steps, curves show every n-th (with a notice)
  int64_t max_commits = 400;  // newest rows of the commit table
  int64_t max_events = 400;   // newest rows of the event table
  SampleLimits samples;
};

// {"run": run.json, "config": text, "state": "finished"|"stopped"|"in progress",
//  "steps":[N], "series":{"reward/mean":[N numbers or null]},
//  "headline":{..}, "weights":{"first"|"last"|"all":{"raw":[20],"truncated":[20]}},
//  "staleness":{"0":tokens}, "drops":{reason:count}, "commits":[..], "alerts":[..],
//  "events":[of events.jsonl, then the restarts of restarts.jsonl],
//  "drift": BuildDriftData, "captures":[{"step", "page": has it an attribution.html}],
//  "samples": BuildSampleData, "notices":[text]}
// A step that occurs twice, because a resumed run repeats steps after its checkpoint, counts by its
// last line.
Json BuildRunData(const RunFiles& files, const DataLimits& limits, Notices* notices);

// Drift by token class: the objects drift/by_* of metrics.jsonl, over steps and of the last step
// that has them. `rows` [N] are the lines that are drawn. Values of another shape are left out.
// Pure. {"by_version_lag": {"k3"|"mean_abs_delta": {bucket: [N of [value, low, high] or null]}},
//  "by_turn": the same,
//  "last": {"length": {"step", "buckets": {label: {"tokens", "mean_delta": [value, low, high],
//  ...}}}}}
Json BuildDriftData(const std::vector<const Json*>& rows);

// Groups of rollouts/ of the first, middle and last step token by token, and the tokens on which
// the log-probs of the two engines differ most. {"steps":[{"step","groups":[..]}], "worst":[..],
// "worst_completions":[those that hold them, by "completion" of each], "worst_steps":[first,last]};
// `worst_steps` is missing if rollouts/ is. A completion whose arrays differ in length is left out
// with a notice. Groups whose rewards differ come first, because only they teach.
Json BuildSampleData(const RunFiles& files, const SampleLimits& limits, Notices* notices);

}  // namespace tandem::report
