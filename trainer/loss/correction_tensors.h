// CorrectionTensors: arrow 6 of one microbatch as tensors. common/offpolicy/correction.h computes
// it; here its numbers come from a microbatch and go into the tensors of the loss.
#ifndef TANDEM_TRAINER_LOSS_CORRECTION_TENSORS_H_
#define TANDEM_TRAINER_LOSS_CORRECTION_TENSORS_H_

#include <ATen/core/Tensor.h>

#include "absl/status/statusor.h"
#include "common/offpolicy/correction.h"
#include "trainer/experience/experience_batch.h"

namespace tandem::trainer {

// `proximal` [T] float32, in the order of the row; its gradient is cut.
//   INVALID_ARGUMENT  proximal is not of the microbatch's length
absl::StatusOr<offpolicy::Correction> CorrectMicrobatch(
    const Microbatch& micro, const at::Tensor& proximal,
    const offpolicy::CorrectionOptions& options);

struct CorrectionTensors {
  at::Tensor weight;             // [T] float32
  at::Tensor kept;               // [T] bool
  at::Tensor proximal_logprobs;  // [T] float32: what the loss is centred on; finite
};
CorrectionTensors MakeTensors(const offpolicy::Correction& correction);

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_LOSS_CORRECTION_TENSORS_H_
