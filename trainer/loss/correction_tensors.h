// CorrectionTensors: stage 6 of one microbatch. common/offpolicy/correction.h computes the
// correction on plain numbers; this file takes them from a microbatch and turns the result into the
// tensors that the loss reads.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/offpolicy/correction.h"
#include "trainer/experience/experience_batch.h"

namespace tandem::trainer {

// `proximal` [T] float32, in the order of the row; it is detached. The unit that filters and the
// sequence and geometric weights work on is a completion, or this many that follow each other.
//   INVALID_ARGUMENT  `proximal` has another length than the microbatch
absl::StatusOr<offpolicy::Correction> CorrectMicrobatch(const Microbatch& micro,
                                                        const at::Tensor& proximal,
                                                        const offpolicy::CorrectionOptions& options,
                                                        int64_t completions_per_unit = 1);

struct CorrectionTensors {
  at::Tensor weight;             // [T] float32
  at::Tensor kept;               // [T] bool
  at::Tensor proximal_logprobs;  // [T] float32: what the loss is centred on; finite
};
CorrectionTensors MakeTensors(const offpolicy::Correction& correction);

// Conversions between [T] tensors and numbers on the host: stages 6 and 7 compute on numbers.

// `x` [T] of any floating type, without its gradient.
std::vector<double> ToDoubles(const at::Tensor& x);

// [T] float32.
at::Tensor ToFloatTensor(std::span<const double> values);

}  // namespace tandem::trainer
