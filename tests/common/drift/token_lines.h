// TokenLines: tokens given as probabilities, for tests of functions of a TokenRecord.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "common/capture/token_record.h"

namespace tandem::offpolicy {

struct TokenLines {
  std::vector<float> behaviour, proximal, entropies, second_moments, advantages;
  std::vector<int32_t> sequence, position, version_lag, group, length;
  std::vector<uint8_t> mask;

  // The entropy is 1 and the second moment 1.5, so the variance is 0.5. `of` is the completion.
  // Each completion is its own group unless `group` is set afterwards.
  void Add(double mu, double pi, float advantage = 1, int32_t of = 0, bool masked_in = true) {
    behaviour.push_back(static_cast<float>(std::log(mu)));
    proximal.push_back(static_cast<float>(std::log(pi)));
    entropies.push_back(1.0f);
    second_moments.push_back(1.5f);
    advantages.push_back(advantage);
    sequence.push_back(of);
    version_lag.push_back(0);
    mask.push_back(masked_in);
    for (auto next = static_cast<int32_t>(length.size()); next <= of; ++next) {
      length.push_back(0);
      group.push_back(next);
    }
    position.push_back(length[static_cast<size_t>(of)]++);
  }

  TokenRecord view() const {
    return {behaviour, proximal,    entropies, second_moments, advantages, sequence,
            position,  version_lag, mask,      group,          length};
  }
};

}  // namespace tandem::offpolicy
