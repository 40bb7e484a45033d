// BuildInputs: what the runner computes and samples for a plan of the scheduler. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "rollout_server/engine/forward/token_runner.h"
#include "rollout_server/engine/schedule/scheduler.h"
#include "rollout_server/engine/schedule/sequence.h"

namespace tandem::rollout {

struct PlanInputs {
  std::vector<TokenInput> tokens;    // in the order of the plan's work
  std::vector<int64_t> logits_rows;  // indices of `tokens` whose logits are needed
  // The sequences that get a token, in order of their row of logits, and how each one samples it.
  std::vector<Sequence*> sequences;
  std::vector<TokenDraw> draws;
};

PlanInputs BuildInputs(const StepPlan& plan);

}  // namespace tandem::rollout
