// Tokens drawn from rows of logits on the device, with everything recorded about each draw (arrow
// 2): what SampleToken (rollout_server/engine/sampler.h) does, from the same uniforms, with sums in
// an order of its own. Log-probs agree to rounding, and so do draws but where the uniform falls
// that close to the border of two tokens. Free of LibTorch and of CUDA headers.
#ifndef TANDEM_ROLLOUT_SERVER_ENGINE_CUDA_DRAW_KERNEL_H_
#define TANDEM_ROLLOUT_SERVER_ENGINE_CUDA_DRAW_KERNEL_H_

#include <cstdint>

#include "common/cuda/kernels.h"

namespace tandem::rollout::cuda {

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
  int32_t first_forbidden = 0, num_forbidden = 0;  // of the call's forbidden ids
  int32_t kept_row = -1;  // of the call's `kept`, for the ids that filters left; -1: not asked for
};

enum class DrawState : int32_t {
  kDrawn,
  kBroken,       // a logit is NaN or +inf, or all are -inf
  kNothingLeft,  // all ids are forbidden or -inf
};

// As SampledToken.
struct Drawn {
  int32_t id = 0;
  float behaviour_logprob = 0;
  float raw_logprob = 0;
  float entropy = 0;
  float logprob_second_moment = 0;
  float kept_mass = 1;
  DrawState state = DrawState::kDrawn;
};

inline constexpr int64_t kLargestVocabulary = int64_t{1} << 20;

// Words of a row of `kept`: id i is bit i % 32 of word i / 32.
constexpr int64_t KeptWords(int64_t vocabulary) { return (vocabulary + 31) / 32; }

// drawn[i] is what draws[i] gives, and stays where that is nothing, from logits [R, V] fp32; the
// row of `kept` [*, KeptWords(V)] that it names gets the ids that top-k, top-p and min-p left, and
// stays where none of them is on or the draw is greedy. All pointers are of the device; `kept` may
// be null where no draw names a row.
void DrawTokens(const float* logits, int64_t vocabulary, const Draw* draws, int64_t num_draws,
                const int32_t* forbidden, Drawn* drawn, uint32_t* kept,
                tandem::cuda::Stream stream);

}  // namespace tandem::rollout::cuda

#endif  // TANDEM_ROLLOUT_SERVER_ENGINE_CUDA_DRAW_KERNEL_H_
