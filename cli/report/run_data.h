// The data of the page: one JSON object that page/*.js draw. Used by report.cc.
#pragma once

#include "cli/report/run_files.h"
#include "cli/report/sample_data.h"

namespace tandem::report {

struct DataLimits {
  int64_t max_steps = 1500;   // more train steps are thinned evenly, with a notice
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
// A step that occurs twice (a resume repeats steps after its checkpoint) counts by its last line.
Json BuildRunData(const RunFiles& files, const DataLimits& limits, Notices* notices);

}  // namespace tandem::report
