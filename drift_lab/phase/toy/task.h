// The toy's task: each prompt has one random string of tokens, and a completion has reward 1 if it
// is that string, otherwise 0. The pass probability of a policy has a closed form: the product of
// its probabilities along the string.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "drift_lab/phase/toy/policy.h"

namespace tandem::drift {

class Task {
 public:
  // The strings have `length` uniform tokens and are a function of the seed.
  Task(int length, uint64_t seed);

  int length() const { return length_; }
  int target(int prompt, int position) const {
    return targets_[static_cast<size_t>(prompt * length_ + position)];
  }

  // The reward of a whole completion, [length].
  double Reward(int prompt, std::span<const int> completion) const;

  // The mean over prompts of prod_t pi(target_t | prompt, t, target_{t-1}).
  double PassProbability(ContextTable& policy) const;

 private:
  const int length_;
  std::vector<int> targets_;  // [kPrompts * length]
};

}  // namespace tandem::drift
