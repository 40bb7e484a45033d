// DrawTokens: samples tokens from rows of logits on the device, with the whole record of each
// (stage 2). It does what SampleToken and ScoreToken (rollout_server/engine/sampling/sampler.h) do,
// from the same uniforms, but adds in another order. So log-probs agree to rounding, and tokens
// agree unless the uniform falls that close to the border of two of them. Free of LibTorch and CUDA
// headers.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/cuda/kernels.h"

namespace tandem::rollout::cuda {

// In place of a number: the forbidden ids are a bit set, with id i in bit i % 32 of word i / 32.
inline constexpr int32_t kForbiddenBits = -1;

// One token to sample or score. Several may use one row of logits.
struct Draw {
  uint64_t seed = 0;  // the uniform is UniformDraw(seed, index, position) of philox.h
  uint32_t index = 0;
  uint32_t position = 0;
  int32_t row = 0;        // of the logits; -1: padding, without a result
  float temperature = 1;  // this and the next three as in SamplingParams
  int32_t top_k = 0;
  float top_p = 1;
  float min_p = 0;
  // The draw's part of the call's forbidden ids: this many from the first on, rising, or with
  // kForbiddenBits a bit set over all ids.
  int32_t first_forbidden = 0, num_forbidden = 0;
  int32_t kept_row = -1;   // row of the call's `kept` for the support; -1: not requested
  int32_t num_top = 0;     // how many of the most likely ids to list, at most kMostTop
  int32_t scored_id = -1;  // score this id and sample nothing; needs a temperature > 0
};

enum class DrawState : int32_t {
  kDrawn,
  kBroken,       // a logit is NaN or +inf, or all are -inf
  kNothingLeft,  // all ids are forbidden or -inf
};

// As SampledToken. The state is that of this row alone.
struct Drawn {
  int32_t id = 0;
  float behaviour_logprob = 0;  // of a score: -inf when filters remove the id
  float raw_logprob = 0;
  float entropy = 0;
  float logprob_second_moment = 0;
  float kept_mass = 1;
  DrawState state = DrawState::kDrawn;
  int32_t num_top = 0;  // ids in its row of `top`
};

// The further fields of ScoredToken.
struct Scored {
  float squared_probs = 0;
  float margin = 0;
  float gap = 0;
  float mass_above = 0;
  int32_t rank = 0;
};

// As TopLogprob: likeliest first, of equal ones the lower id. Ids that cannot be sampled are not
// listed.
struct TopId {
  int32_t id = 0;
  float logprob = 0;
};

inline constexpr int64_t kLargestVocabulary = int64_t{1} << 20;
inline constexpr int64_t kMostTop = 64;
inline constexpr int64_t kDrawsTogether = 512;  // draws that use the workspace at once

// Words of a row of `kept`: id i is bit i % 32 of word i / 32.
constexpr int64_t KeptWords(int64_t vocabulary) { return (vocabulary + 31) / 32; }

// Size of DrawTask::workspace, whose contents do not matter between two calls.
constexpr int64_t DrawWorkspaceBytes(int64_t vocabulary, int64_t num_draws) {
  constexpr int64_t kBytesEach = 36 * 1024, kSegmentBytes = 96, kLeastSegment = 1024;
  const int64_t segments = std::min<int64_t>(512, (vocabulary + kLeastSegment - 1) / kLeastSegment);
  return std::min(num_draws, kDrawsTogether) * (kBytesEach + segments * kSegmentBytes);
}

// All pointers are device pointers.
struct DrawTask {
  const float* logits = nullptr;  // [R, V]
  int64_t vocabulary = 0;         // V <= kLargestVocabulary
  const Draw* draws = nullptr;    // [num_draws]
  int64_t num_draws = 0;
  const int32_t* forbidden = nullptr;
  // [num_draws] results; those of padding are not written.
  Drawn* drawn = nullptr;
  // [*, KeptWords(V)]: row `kept_row` of a draw gets the ids that top-k, top-p and min-p leave. It
  // is not written when no filter is on or the draw is greedy. Null when no draw has a kept_row.
  uint32_t* kept = nullptr;
  TopId* top = nullptr;       // [num_draws, kMostTop], or null when no draw lists any
  Scored* scored = nullptr;   // [num_draws], or null when no draw is a score
  void* workspace = nullptr;  // DrawWorkspaceBytes, at a multiple of 16
};
void DrawTokens(const DrawTask& task, tandem::cuda::Stream stream);

}  // namespace tandem::rollout::cuda
