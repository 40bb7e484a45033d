// Tokens drawn from rows of logits on the device, with everything recorded about each draw (stage
// 2): what SampleToken and ScoreToken (rollout_server/engine/sampling/sampler.h) do, from the same uniforms,
// with sums in an order of its own. Log-probs agree to rounding, and so do draws but where the
// uniform falls that close to the border of two tokens. Free of LibTorch and of CUDA headers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "common/cuda/kernels.h"

namespace tandem::rollout::cuda {

// In place of a number: id i is bit i % 32 of word i / 32 from the first on.
inline constexpr int32_t kForbiddenBits = -1;

// One draw. Several may be from one row of logits.
struct Draw {
  uint64_t seed = 0;  // the uniform is UniformDraw(seed, index, position) of philox.h
  uint32_t index = 0;
  uint32_t position = 0;
  int32_t row = 0;        // of the logits; -1: a padded draw, which gives nothing
  float temperature = 1;  // as SamplingParams, and so the next three
  int32_t top_k = 0;
  float top_p = 1;
  float min_p = 0;
  // Which of the call's forbidden ids are this draw's: so many of them, rising, or with
  // kForbiddenBits bits of all ids.
  int32_t first_forbidden = 0, num_forbidden = 0;
  int32_t kept_row = -1;   // of the call's `kept`, for the ids that filters left; -1: not asked for
  int32_t num_top = 0;     // so many of the most likely ids, at most kMostTop
  int32_t scored_id = -1;  // this id's record, and nothing is drawn; needs a temperature
};

enum class DrawState : int32_t {
  kDrawn,
  kBroken,       // a logit is NaN or +inf, or all are -inf
  kNothingLeft,  // all ids are forbidden or -inf
};

// As SampledToken. One row's state says nothing about the others.
struct Drawn {
  int32_t id = 0;
  float behaviour_logprob = 0;  // of a score: -inf where filters take the id out
  float raw_logprob = 0;
  float entropy = 0;
  float logprob_second_moment = 0;
  float kept_mass = 1;
  DrawState state = DrawState::kDrawn;
  int32_t num_top = 0;  // ids in its row of `top`
};

// What ScoredToken has besides.
struct Scored {
  float squared_probs = 0;
  float margin = 0;
  float gap = 0;
  float mass_above = 0;
  int32_t rank = 0;
};

// As TopLogprob: likeliest first, of equals the lower id. Ids that cannot be drawn are not listed.
struct TopId {
  int32_t id = 0;
  float logprob = 0;
};

inline constexpr int64_t kLargestVocabulary = int64_t{1} << 20;
inline constexpr int64_t kMostTop = 64;
inline constexpr int64_t kDrawsTogether = 512;  // further ones wait for the workspace

// Words of a row of `kept`: id i is bit i % 32 of word i / 32.
constexpr int64_t KeptWords(int64_t vocabulary) { return (vocabulary + 31) / 32; }

// Of DrawTask::workspace. Its contents mean nothing between two calls.
constexpr int64_t DrawWorkspaceBytes(int64_t vocabulary, int64_t num_draws) {
  constexpr int64_t kBytesEach = 36 * 1024, kSegmentBytes = 96, kLeastSegment = 1024;
  const int64_t segments = std::min<int64_t>(512, (vocabulary + kLeastSegment - 1) / kLeastSegment);
  return std::min(num_draws, kDrawsTogether) * (kBytesEach + segments * kSegmentBytes);
}

// All pointers are of the device.
struct DrawTask {
  const float* logits = nullptr;  // [R, V]
  int64_t vocabulary = 0;         // V <= kLargestVocabulary
  const Draw* draws = nullptr;    // [num_draws]
  int64_t num_draws = 0;
  const int32_t* forbidden = nullptr;
  // [num_draws]: what each gives; stays where a draw is padded.
  Drawn* drawn = nullptr;
  // [*, KeptWords(V)]: the row that a draw names gets the ids that top-k, top-p and min-p left, and
  // stays where none of them is on or the draw is greedy. Null where no draw names one.
  uint32_t* kept = nullptr;
  TopId* top = nullptr;       // [num_draws, kMostTop], or null where no draw asks for any
  Scored* scored = nullptr;   // [num_draws], or null where none is a score
  void* workspace = nullptr;  // DrawWorkspaceBytes, at a multiple of 16
};
void DrawTokens(const DrawTask& task, tandem::cuda::Stream stream);

}  // namespace tandem::rollout::cuda
