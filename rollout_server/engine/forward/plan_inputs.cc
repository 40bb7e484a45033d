#include "rollout_server/engine/forward/plan_inputs.h"

namespace tandem::rollout {
namespace {

// How the next token of a sequence is sampled.
TokenDraw DrawOf(const Sequence& sequence, int64_t logits_row) {
  const SamplingParams& sampling = sequence.group->request.sampling;
  const auto position = static_cast<uint32_t>(sequence.completion.token_ids.size());
  const bool may_stop = static_cast<int32_t>(position) >= sampling.min_new_tokens;
  return {.logits_row = logits_row,
          .params = &sampling,
          .forbidden = may_stop ? nullptr : &sequence.group->stop_ids,
          .index = static_cast<uint32_t>(sequence.completion.index),
          .position = position};
}

}  // namespace

PlanInputs BuildInputs(const StepPlan& plan) {
  PlanInputs in;
  for (const Work& work : plan.work) {
    const std::vector<BlockId>& blocks =
        work.sequence != nullptr ? work.sequence->kv.blocks : work.group->prompt.blocks;
    for (int64_t p = work.begin; p < work.end; ++p) {
      const int32_t id =
          work.sequence != nullptr ? work.sequence->TokenAt(p) : work.group->request.prompt[p];
      in.tokens.push_back({id, static_cast<int32_t>(p), &blocks});
    }
    if (!work.draws) continue;
    const auto add = [&](Sequence* sequence) {
      in.sequences.push_back(sequence);
      in.draws.push_back(DrawOf(*sequence, std::ssize(in.logits_rows)));
    };
    if (work.sequence != nullptr) {
      add(work.sequence);
    } else {
      for (const auto& one : work.group->sequences) add(one.get());
    }
    in.logits_rows.push_back(std::ssize(in.tokens) - 1);
  }
  return in;
}

}  // namespace tandem::rollout
