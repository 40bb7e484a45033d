// The runs below a directory, as a list shows them. Reads the ends of files, so that a list of many
// long runs is quick. Tolerant as the report is: a run may be in progress, or have died.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tandem::ui {

// A directory with run.json, metrics.jsonl or events.jsonl.
struct Run {
  std::string name;  // its path below the root; of a root that is a run, its last component
  std::string path;
};

bool IsRun(const std::string& directory);

// The runs below `roots`, at most two levels deep, sorted by name, and the roots that are runs
// themselves. A run that is reached twice is listed once; others of the same name are called
// "NAME (2)" and so on, in the order of the roots. Links are followed.
std::vector<Run> FindRuns(const std::vector<std::string>& roots);

// {"name", "state": "finished"|"stopped"|"in progress"|"silent", "started_at", "model", "step",
//  "seconds_ago" (since metrics.jsonl grew), "last": the last line of metrics.jsonl with the numbers
//  of a list, "report": has it a report.html, "attributions": [steps]}
// "silent": without an end, and nothing was written for ten minutes.
nlohmann::json SummaryOf(const Run& run);

}  // namespace tandem::ui
