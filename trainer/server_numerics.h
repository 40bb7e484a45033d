// CheckServerNumerics: can this server's log-probs be re-scored bit for bit? Pure.
#ifndef TANDEM_TRAINER_SERVER_NUMERICS_H_
#define TANDEM_TRAINER_SERVER_NUMERICS_H_

#include "absl/status/status.h"
#include "common/model/numerics.h"
#include "common/tensor/instruction_set.h"
#include "proto/rollout.pb.h"
#include "trainer/compute_dtype.h"

namespace tandem::trainer {

// What `exact` asks of a server: that it keeps the promise too, in the trainer's dtype and with the
// trainer's instructions. Anything goes in the other modes.
//   INVALID_ARGUMENT  names what differs and what to set
absl::Status CheckServerNumerics(const rollout::v1::GetInfoResponse& info, Numerics numerics,
                                 ComputeDType dtype, InstructionSet set);

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_SERVER_NUMERICS_H_
