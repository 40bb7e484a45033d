// BuildInputs: what the runner computes for a plan of the scheduler. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "rollout_server/engine/forward/token_runner.h"
#include "rollout_server/engine/schedule/scheduler.h"
#include "rollout_server/engine/schedule/sequence.h"

namespace tandem::rollout {

struct StepInputs {
  std::vector<TokenInput>
      stale;  // faults.stale_prefix_fraction: computed first, under the weights before
  std::vector<TokenInput> tokens;
  std::vector<int64_t> logits_rows;
  std::vector<Sequence*> draws;     // sequences that get a token, in order of their row of logits
  std::vector<size_t> draws_begin;  // of each row of logits, then the number of draws
};

// `wrong_bos`: an id in place of each prompt's first; -1: none. `has_stale_prefix`: of its group,
// all prompt tokens but the last.
StepInputs BuildInputs(const StepPlan& plan, int64_t wrong_bos,
                       absl::FunctionRef<bool(const RunningGroup&)> has_stale_prefix);

}  // namespace tandem::rollout
