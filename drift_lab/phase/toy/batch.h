// Batch: the tokens that one step of the toy samples from the behaviour policy, as parallel
// vectors, with their rewards and advantages.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "drift_lab/phase/toy/gap.h"
#include "drift_lab/phase/toy/task.h"

namespace tandem::drift {

inline constexpr int kGroup = 8;  // completions per prompt
inline constexpr int kCompletions = kPrompts * kGroup;

// All [T], T = kCompletions * length. The tokens of a completion are contiguous, and so are the
// completions of a group.
struct Batch {
  std::vector<int> contexts;              // ContextIndex
  std::vector<int> tokens;                // sampled in that context
  std::vector<float> behaviour_logprobs;  // true log mu of the token
  std::vector<int32_t> sequence;          // number of the completion
  std::vector<float> advantages;          // of the completion, at each of its tokens
  std::vector<double> rewards;            // [kCompletions]
};

// Samples kGroup completions of every prompt, with the random numbers of `step`.
Batch SampleBatch(BehaviourPolicy& behaviour, const Task& task, const RandomNumbers& random,
                  uint32_t step);

// (R - mean) / (std + 1e-4) within each group of kGroup, where std has the divisor kGroup - 1.
std::vector<float> Advantages(std::span<const double> rewards);

}  // namespace tandem::drift
