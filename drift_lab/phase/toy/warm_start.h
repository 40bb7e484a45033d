// The supervised warm start minimises the cross entropy of the target strings until the policy
// passes often enough for reinforcement learning to see rewards. The previous token of a context is
// replaced by a random one with some probability, so that the policy also learns to continue after
// a mistake.
#pragma once

#include <cstdint>

#include "drift_lab/phase/toy/policy.h"
#include "drift_lab/phase/toy/task.h"

namespace tandem::drift {

struct WarmStartOptions {
  double pass_probability = 0.30;  // stop at the first update that reaches it
  double context_noise = 0.9;      // share of previous tokens replaced
  double learning_rate = 3e-3;
  int max_updates = 5000;
};

// The initial policy of a run, a function of the task, the options and the seed.
Parameters WarmStart(const Task& task, const WarmStartOptions& options, uint64_t seed);

}  // namespace tandem::drift
