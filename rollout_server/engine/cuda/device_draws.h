// Results of the sampling kernels: their memory on the device, and their conversion to the engine's
// records (stage 2). Includes LibTorch; errors of memory and copies are c10::Error.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "rollout_server/engine/cuda/draw/draw_kernel.h"
#include "rollout_server/engine/forward/token_runner.h"
#include "rollout_server/engine/sampling/sampler.h"

namespace tandem::rollout::cuda {

// What a call needs besides the tokens.
struct DrawWants {
  bool supports = false, tops = false, scores = false;
};
DrawWants WantsOf(std::span<const TokenDraw> draws);

// Tensors of bytes unless noted. Those that a call does not need are undefined.
struct DrawMemory {
  at::Tensor drawn;      // [n] Drawn
  at::Tensor kept;       // [n, KeptWords(V)] int32
  at::Tensor top;        // [n, kMostTop] TopId
  at::Tensor scored;     // [n] Scored
  at::Tensor workspace;  // for DrawTokens with n draws
};
DrawMemory MakeDrawMemory(int64_t num_draws, int64_t vocabulary, const DrawWants& wants);

// The task of draws [first, first + count) of `draws`, which `memory` was made for, from these
// logits.
DrawTask TaskOf(const DrawMemory& memory, const at::Tensor& logits, const Draw* draws,
                const int32_t* forbidden, int64_t first, int64_t count);

// Copies the first `count` records to the host. Waits for the current stream.
DrawMemory Fetch(const DrawMemory& memory, int64_t count, const DrawWants& wants);
// The same without `drawn`; waits only when `wants` has something.
DrawMemory FetchWanted(const DrawMemory& memory, int64_t count, const DrawWants& wants);

// Record i of `host` as the engine's. An error is about this row alone.
//   DATA_LOSS            a logit is NaN or +inf, or all are -inf
//   FAILED_PRECONDITION  all ids that are not forbidden have -inf
//   INTERNAL             the kernel wrote no record
absl::StatusOr<SampledToken> TokenAt(const DrawMemory& host, size_t i, const TokenDraw& draw);
absl::StatusOr<ScoredToken> ScoreAt(const DrawMemory& host, size_t i);

}  // namespace tandem::rollout::cuda
