// TokenRecord: the completions of a train step or a capture as parallel arrays. Every drift metric,
// interval and split is a function of a TokenRecord. The behaviour policy mu is the rollout policy
// as it sampled; the proximal policy is the trainer's at the start of the train step (the "old
// policy" of PPO).
//
//   delta = log pi_proximal - log pi_behaviour,  w = e^delta
#pragma once

#include <cmath>
#include <cstdint>
#include <span>

namespace tandem::offpolicy {

struct TokenRecord {
  // [T], parallel. The tokens of a completion are contiguous and in order.
  std::span<const float> behaviour_logprobs;
  std::span<const float> proximal_logprobs;
  std::span<const float> entropies;               // entropy of the sampling distribution, nats
  std::span<const float> logprob_second_moments;  // of the sampling distribution
  std::span<const float> advantages;
  std::span<const int32_t> sequence;     // index of the token's completion, in [0, S)
  std::span<const int32_t> position;     // in the completion, from 0, over its drawn tokens
  std::span<const int32_t> version_lag;  // scored version less the version that sampled it
  std::span<const uint8_t> mask;         // 0: the token is left out
  // [S], one element per completion.
  std::span<const int32_t> group;   // index of its group
  std::span<const int32_t> length;  // drawn tokens
  // [T] the turn that drew the token, from 1. Empty: all completions are of one turn.
  std::span<const int32_t> turn = {};

  bool IsFinite(size_t t) const {
    return std::isfinite(behaviour_logprobs[t]) && std::isfinite(proximal_logprobs[t]);
  }
  double Delta(size_t t) const {
    return static_cast<double>(proximal_logprobs[t]) - static_cast<double>(behaviour_logprobs[t]);
  }
};

}  // namespace tandem::offpolicy
