// GradientGram: the inner products of gradients of a capture's completions, with one backward pass
// of the trainer's forward each. The header is free of LibTorch.
//
// Gradients are not kept: each is sketched to at most kSketchWidth floats, parameter by parameter,
// as the backward pass delivers it (vector_sketch.h). Use from one thread. Memory: the trainer's
// masters and gradients, and 1 MiB for each request.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/capture/capture.h"
#include "drift_lab/recompute/trainer_forward.h"

namespace tandem::drift {

inline constexpr int64_t kSketchWidth = int64_t{1} << 18;  // a squared norm to 0.28 %

// Asks for the gradient of sum_t direction[t] log pi[t] over the tokens of a completion.
struct GradientRequest {
  int64_t completion = 0;
  std::vector<double> direction;  // [T]
};

struct GradientGram {
  int64_t size = 0;              // N requests
  std::vector<double> products;  // [N, N]
  std::vector<float> logprobs;   // [T] of the capture, from these passes; NaN without a pass
  int64_t num_parameters = 0;
  double relative_error = 0;  // standard error of a squared norm over sketches; 0: exact

  double at(size_t i, size_t j) const { return products[i * static_cast<size_t>(size) + j]; }
};

// Called after every backward pass with the number of passes made.
using GramProgress = absl::FunctionRef<void(int64_t done)>;

// `forward` must be trainable.
//   any error of TrainerForward::Differentiate
absl::StatusOr<GradientGram> ComputeGradientGram(TrainerForward& forward,
                                                 const offpolicy::Capture& capture,
                                                 std::span<const GradientRequest> requests,
                                                 uint64_t seed, GramProgress progress);

}  // namespace tandem::drift
