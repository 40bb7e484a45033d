#include "rollout_server/engine/forward/plan_inputs.h"

namespace tandem::rollout {

StepInputs BuildInputs(const StepPlan& plan, int64_t wrong_bos,
                       absl::FunctionRef<bool(const RunningGroup&)> has_stale_prefix) {
  StepInputs in;
  for (const Work& work : plan.work) {
    const std::vector<BlockId>& blocks =
        work.sequence != nullptr ? work.sequence->kv.blocks : work.group->prompt.blocks;
    const int64_t stale_end = has_stale_prefix(*work.group) ? work.group->prompt_size() - 1 : 0;
    for (int64_t p = work.begin; p < work.end; ++p) {
      int32_t id =
          work.sequence != nullptr ? work.sequence->TokenAt(p) : work.group->request.prompt[p];
      if (p == 0 && wrong_bos >= 0) id = static_cast<int32_t>(wrong_bos);
      (p < stale_end ? in.stale : in.tokens).push_back({id, static_cast<int32_t>(p), &blocks});
    }
    if (!work.draws) continue;
    in.logits_rows.push_back(static_cast<int64_t>(in.tokens.size()) - 1);
    in.draws_begin.push_back(in.draws.size());
    if (work.sequence != nullptr) {
      in.draws.push_back(work.sequence);
    } else {
      for (const auto& s : work.group->sequences) in.draws.push_back(s.get());
    }
  }
  in.draws_begin.push_back(in.draws.size());
  return in;
}

}  // namespace tandem::rollout
