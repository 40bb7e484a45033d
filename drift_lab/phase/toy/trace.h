// Trace: metrics of a run, with one row every few steps, computed from the batch of a step before
// its update. Ratios are w = pi / mu, before any clamp.
#pragma once

#include <array>
#include <span>

#include "drift_lab/phase/toy/batch.h"
#include "drift_lab/phase/toy/token_weights.h"

namespace tandem::drift {

inline constexpr int kTraceStride = 5;  // steps between two rows

enum class Watched {
  kScore,         // exact pass probability of pi
  kReward,        // mean reward of the batch
  kK3,            // mean(w - 1 - log w)
  kEss,           // (sum w)^2 / (N sum w^2)
  kTail,          // 99.9th percentile of abs(log w)
  kMeanW,         // mean w
  kOutside,       // share of w outside [.5, 2], for every method
  kDropped,       // share of tokens that the method drops
  kKeptPositive,  // share that it keeps of tokens with advantage > 0; NaN without such tokens
  kKeptNegative,  // share that it keeps of tokens with advantage < 0; NaN without such tokens
  kGradientNorm,  // before the clip
  kEntropy,       // of pi, mean over tokens
  kMaxLogit,      // largest logit of the visited contexts
  kKl,            // KL(mu || pi), exact over the vocabulary, mean over tokens
};
inline constexpr size_t kNumWatched = static_cast<size_t>(Watched::kKl) + 1;

// "score", "k3", ...: the name in files and on pages.
const char* WatchedName(Watched watched);

using TraceRow = std::array<double, kNumWatched>;
inline double& At(TraceRow& row, Watched watched) { return row[static_cast<size_t>(watched)]; }
inline double At(const TraceRow& row, Watched watched) { return row[static_cast<size_t>(watched)]; }

// All metrics but the gradient norm, which the update computes. `target_logprobs` [T] is log pi of
// the batch's tokens. `behaviour` must still be as it was when the batch was sampled.
TraceRow Watch(const Batch& batch, std::span<const float> target_logprobs,
               const TokenWeights& weights, const Task& task, ContextTable& policy,
               BehaviourPolicy& behaviour);

}  // namespace tandem::drift
