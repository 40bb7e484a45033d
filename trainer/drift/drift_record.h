// DriftRecord: a trained batch as the record that drift metrics are computed from: completions side
// by side, whatever rows they were packed in. Free of LibTorch and protobuf. Made in train_step.cc.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/weight_version.h"
#include "common/capture/token_record.h"
#include "trainer/experience/experience_batch.h"

namespace tandem::trainer {

struct DriftRecord {
  std::vector<float> behaviour, proximal, entropies, second_moments, advantages;  // [T]
  std::vector<int32_t> sequence, position, version_lag;                           // [T]
  std::vector<uint8_t> mask;                                                      // [T], all 1
  std::vector<int32_t> group, length;                                             // [S]
  std::vector<int32_t> turn;  // [T]; empty where all completions are of one turn

  offpolicy::TokenRecord view() const {
    return {behaviour, proximal,    entropies, second_moments, advantages, sequence,
            position,  version_lag, mask,      group,          length,     turn};
  }
};

// `proximal` [microbatches]: log-probs in the order of each one's row. `version` is the one they
// are of: tokens drawn under an older one lag behind it.
DriftRecord MakeDriftRecord(const ExperienceBatch& batch,
                            std::span<const std::span<const float>> proximal,
                            WeightVersion version);

}  // namespace tandem::trainer
