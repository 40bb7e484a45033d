#include "trainer/drift/drift_record.h"

#include <algorithm>

namespace tandem::trainer {

DriftRecord MakeDriftRecord(const ExperienceBatch& batch,
                            std::span<const std::span<const float>> proximal,
                            WeightVersion version) {
  DriftRecord record;
  for (const CompletionOrigin& origin : batch.completions) {
    record.group.push_back(static_cast<int32_t>(origin.group));
    record.length.push_back(0);
  }
  for (size_t m = 0; m < batch.microbatches.size(); ++m) {
    const Microbatch& micro = batch.microbatches[m];
    for (size_t t = 0; t < micro.loss_mask.size(); ++t) {
      if (!micro.loss_mask[t]) continue;
      const int32_t number = micro.completion[t];
      record.behaviour.push_back(micro.behaviour_logprobs[t]);
      record.proximal.push_back(proximal[m][t]);
      record.entropies.push_back(micro.entropies[t]);
      record.second_moments.push_back(micro.logprob_second_moments[t]);
      record.advantages.push_back(micro.advantages[t]);
      record.sequence.push_back(number);
      record.turn.push_back(micro.turns[t]);
      record.position.push_back(record.length[static_cast<size_t>(number)]++);
      record.version_lag.push_back(
          static_cast<int32_t>(std::max<int64_t>(0, version.value - micro.weight_versions[t])));
    }
  }
  if (std::ranges::all_of(record.turn, [](int32_t turn) { return turn == 1; })) {
    record.turn.clear();
  }
  record.mask.assign(record.behaviour.size(), 1);
  return record;
}

}  // namespace tandem::trainer
