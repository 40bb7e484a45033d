// What draws and scores give, in the device's memory and then as the engine's records (stage 2).
// Includes LibTorch; errors of memory and copies are c10::Error.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "rollout_server/engine/cuda/draw/draw_kernel.h"
#include "rollout_server/engine/forward/token_runner.h"
#include "rollout_server/engine/sampling/sampler.h"

namespace tandem::rollout::cuda {

// What is asked for besides the tokens.
struct DrawWants {
  bool supports = false, tops = false, scores = false;
};
DrawWants WantsOf(std::span<const TokenDraw> draws);

// Bytes unless said; what nobody wants is undefined.
struct DrawMemory {
  at::Tensor drawn;      // [n] Drawn
  at::Tensor kept;       // [n, KeptWords(V)] int32
  at::Tensor top;        // [n, kMostTop] TopId
  at::Tensor scored;     // [n] Scored
  at::Tensor workspace;  // of DrawTokens for n draws
};
DrawMemory MakeDrawMemory(int64_t num_draws, int64_t vocabulary, const DrawWants& wants);

// For draws [first, first + count) of those that `memory` is for, at `draws`, from these logits.
DrawTask TaskOf(const DrawMemory& memory, const at::Tensor& logits, const Draw* draws,
                const int32_t* forbidden, int64_t first, int64_t count);

// The first `count` records on the host. Waits for the current stream.
DrawMemory Fetch(const DrawMemory& memory, int64_t count, const DrawWants& wants);
// The same without `drawn`; waits only where something is wanted.
DrawMemory FetchWanted(const DrawMemory& memory, int64_t count, const DrawWants& wants);

// Record i of `host`, of this draw or score.
//   INTERNAL  the row has no distribution: a logit is NaN or +inf, or nothing is left to draw from.
//             Says nothing about other rows
absl::StatusOr<SampledToken> TokenAt(const DrawMemory& host, size_t i, const TokenDraw& draw);
absl::StatusOr<ScoredToken> ScoreAt(const DrawMemory& host, size_t i);

}  // namespace tandem::rollout::cuda
