// Batch: what one step of the toy draws from the behaviour policy, token by token in parallel
// vectors, with the rewards and advantages that belong to it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "drift_lab/phase/toy/gap.h"
#include "drift_lab/phase/toy/task.h"

namespace tandem::drift {

inline constexpr int kGroup = 8;  // completions of one prompt
inline constexpr int kCompletions = kPrompts * kGroup;

// All [T], T = kCompletions * length; a completion's tokens stand side by side, a group's
// completions too.
struct Batch {
  std::vector<int> contexts;              // ContextIndex
  std::vector<int> tokens;                // drawn there
  std::vector<float> behaviour_logprobs;  // true log mu of the token
  std::vector<int32_t> sequence;          // number of the completion
  std::vector<float> advantages;          // the completion's, at each of its tokens
  std::vector<double> rewards;            // [kCompletions]
};

// kGroup completions of every prompt, drawn with `draws` at `step`.
Batch SampleBatch(BehaviourPolicy& behaviour, const Task& task, const Draws& draws, uint32_t step);

// (R - mean) / (std + 1e-4) within each group of kGroup; std with the divisor kGroup - 1.
std::vector<float> Advantages(std::span<const double> rewards);

}  // namespace tandem::drift
