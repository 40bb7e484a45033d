// What the report shows of rollouts/: groups of the first, middle and last step token by token, and
// the tokens on which the two engines differ most. Used by run_data.cc; page/samples.js draws it.
#pragma once

#include <cstdint>

#include "cli/report/run_files.h"

namespace tandem::report {

struct SampleLimits {
  int64_t max_groups_per_step = 4;
  int64_t max_tokens_per_completion = 600;  // what lies behind is cut, and counted on the page
  int64_t num_worst_tokens = 20;
  int64_t max_worst_token_steps = 200;  // newest steps searched for worst tokens
};

// {"steps":[{"step","groups":[..]}], "worst":[..], "worst_steps":[first,last]}; only `worst_steps`
// is missing when rollouts/ is. A completion whose arrays differ in length is noted and left out. A
// group in which rewards differ is shown before one in which they are equal: only the former
// teaches.
Json BuildSampleData(const RunFiles& files, const SampleLimits& limits, Notices* notices);

}  // namespace tandem::report
