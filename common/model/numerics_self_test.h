// CheckInvariance: do the kernels keep, on this very machine, the promise behind `invariant` and
// `exact`? Each is run on rows alone and in company, at other places in memory, and must give the
// same bits.
#ifndef TANDEM_COMMON_MODEL_NUMERICS_SELF_TEST_H_
#define TANDEM_COMMON_MODEL_NUMERICS_SELF_TEST_H_

#include "absl/status/status.h"
#include "common/model/model_config.h"
#include "common/tensor/instruction_set.h"

namespace tandem {

// At the sizes of `config`; tens of milliseconds. Pure.
//   FAILED_PRECONDITION  a kernel gave other bits in company (named, with the sizes)
absl::Status CheckInvariance(const ModelConfig& config, InstructionSet set);

}  // namespace tandem

#endif  // TANDEM_COMMON_MODEL_NUMERICS_SELF_TEST_H_
