// GradientGram: inner products of gradients of a capture's completions, one backward pass each,
// through the trainer's own forward. Free of LibTorch in its header.
//
// The gradients themselves are never kept: each is sketched to at most kSketchWidth floats as its
// parameters' gradients come (vector_sketch.h). Use from one thread. Memory: the trainer's masters
// and gradients, and 1 MiB a request.
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

// The gradient of sum_t direction[t] log pi[t] over the tokens of a completion.
struct GradientRequest {
  int64_t completion = 0;
  std::vector<double> direction;  // [T]
};

struct GradientGram {
  int64_t size = 0;              // N requests
  std::vector<double> products;  // [N, N]
  std::vector<float> logprobs;   // [T] of the capture, from these passes; NaN where none was made
  int64_t num_parameters = 0;
  double relative_error = 0;  // of a squared norm: a standard error over sketches; 0: exact

  double at(size_t i, size_t j) const { return products[i * static_cast<size_t>(size) + j]; }
};

// Told after every backward pass: how many are done.
using GramProgress = absl::FunctionRef<void(int64_t done)>;

// `forward` must be trainable.
//   errors of TrainerForward::Differentiate
absl::StatusOr<GradientGram> ComputeGradientGram(TrainerForward& forward,
                                                 const offpolicy::Capture& capture,
                                                 std::span<const GradientRequest> requests,
                                                 uint64_t seed, GramProgress progress);

}  // namespace tandem::drift
