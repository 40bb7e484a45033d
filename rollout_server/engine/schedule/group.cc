#include "rollout_server/engine/schedule/group.h"

namespace tandem::rollout {
std::string_view GroupFailureName(GroupFailure cause) {
  constexpr std::string_view kNames[] = {"non_finite_logits", "nothing_to_draw", "text"};
  return kNames[static_cast<size_t>(cause)];
}

int64_t LastTokenBytes(const FinishedCompletion& completion) {
  // token_ids and decode_batch_sizes, the five log-probs and sums, prefix_cached.
  size_t bytes = 2 * sizeof(int32_t) + 5 * sizeof(float) + 1;
  if (!completion.support.empty()) {
    bytes += sizeof(PackedSupport) + completion.support.back().bytes().size();
  }
  if (!completion.top.empty()) {
    bytes += sizeof(completion.top.back()) + completion.top.back().size() * sizeof(TopLogprob);
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace tandem::rollout
