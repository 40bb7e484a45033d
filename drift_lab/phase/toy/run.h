// RunToy: one run of the toy, from the warm start to the end of reinforcement learning, under one
// injected gap and with one correction.
//
// The supervised warm start minimises the cross entropy of the target strings until the policy
// passes often enough for reinforcement learning to see rewards. The previous token of a context is
// replaced by a random one with some probability, so that the policy also learns to continue after
// a mistake. Then each step samples 8 completions of each of the 16 prompts from the behaviour
// policy, and makes one Adam update with
//
//   gradient = -1/N sum over kept tokens of weight * advantage * grad log pi
//
// where N is the number of all sampled tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "drift_lab/phase/toy/gap.h"
#include "drift_lab/phase/toy/policy.h"
#include "drift_lab/phase/toy/task.h"
#include "drift_lab/phase/toy/token_weights.h"
#include "drift_lab/phase/toy/trace.h"

namespace tandem::drift {

struct WarmStartOptions {
  double pass_probability = 0.30;  // stop at the first update that reaches it
  double context_noise = 0.9;      // share of previous tokens replaced
  double learning_rate = 3e-3;
  int max_updates = 5000;
};

// The initial policy of a run, a function of the task, the options and the seed.
Parameters WarmStart(const Task& task, const WarmStartOptions& options, uint64_t seed);

inline constexpr int kScoredUpdates = 50;  // a run's score is the mean after the last 50 updates

struct RunOptions {
  Gap gap;
  Method method = Method::kNone;
  int length = 8;
  double learning_rate = 3e-3;
  int steps = 800;
  uint64_t seed = 0;
  WarmStartOptions warm_start;
};

// Scores are exact pass probabilities of the target policy.
struct RunResult {
  double start = 0;       // before the first update
  double score = 0;       // mean after each of the last kScoredUpdates updates
  double mean_score = 0;  // mean after each update
  double highest = 0;
  int halved_at = -1;  // first step whose update brings the score below half its highest; -1: none
  std::vector<TraceRow> trace;  // of the steps 0, kTraceStride, ...
};

// A function of the options alone.
RunResult RunToy(const RunOptions& options);

}  // namespace tandem::drift
