// The toy's task: one random string of tokens a prompt; a completion is rewarded with 1 when it is
// that string and with 0 otherwise. The pass probability of a policy is known in closed form: the
// product of its probabilities along the string.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "drift_lab/phase/toy/context_table.h"
#include "drift_lab/phase/toy/policy.h"

namespace tandem::drift {

class Task {
 public:
  // Strings of `length` tokens, each token uniform; a function of the seed.
  Task(int length, uint64_t seed);

  int length() const { return length_; }
  int target(int prompt, int position) const {
    return targets_[static_cast<size_t>(prompt * length_ + position)];
  }

  // Of a whole completion, `length` tokens.
  double Reward(int prompt, std::span<const int> completion) const;

  // Mean over prompts of prod_t pi(target_t | prompt, t, target_{t-1}).
  double PassProbability(ContextTable& policy) const;

 private:
  const int length_;
  std::vector<int> targets_;  // [kPrompts * length]
};

}  // namespace tandem::drift
