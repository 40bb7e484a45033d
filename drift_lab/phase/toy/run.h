// RunToy: from warm start to the end of reinforcement learning, under one injected gap with
// one correction.
//
// A step draws all 16 prompts x group 8 from the behaviour policy and makes one Adam update with
//   gradient = -1/N sum over kept tokens of weight * advantage * grad log pi,   N: all tokens
//   drawn.
#pragma once

#include <cstdint>
#include <vector>

#include "drift_lab/phase/toy/gap.h"
#include "drift_lab/phase/toy/trace.h"
#include "drift_lab/phase/toy/warm_start.h"
#include "drift_lab/phase/toy/token_weights.h"

namespace tandem::drift {

inline constexpr int kScoredUpdates = 50;  // the last ones, averaged to the run's score

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
  int halved_at = -1;  // first step after whose update the score is under half its highest so far
  std::vector<TraceRow> trace;  // of steps 0, kTraceStride, ...
};

// A function of the options alone.
RunResult RunToy(const RunOptions& options);

}  // namespace tandem::drift
