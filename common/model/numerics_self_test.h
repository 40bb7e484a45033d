// CheckInvariance: checks that the kernels, on this machine, keep the guarantee behind `invariant`
// and `exact`. Each kernel runs on rows by themselves and together with others, at several
// alignments, and must give the same bits.
#pragma once

#include "absl/status/status.h"
#include "common/model/model_config.h"
#include "common/tensor/instruction_set.h"

namespace tandem {

// Uses the sizes of `config`. Takes tens of milliseconds. Pure.
//   FAILED_PRECONDITION  a kernel gave other bits in a batch (named, with the sizes)
absl::Status CheckInvariance(const ModelConfig& config, InstructionSet set);

}  // namespace tandem
