// SpoilRecord: what EngineFaults do to a finished completion on its way out. Pure.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/tokenizer/tokenizer.h"
#include "rollout_server/engine/schedule/group.h"
#include "rollout_server/faults/engine_faults.h"

namespace tandem::rollout {

// With shift_fraction the behaviour and raw log-probs of the completion turn by one place, by a
// draw from (seed, index): element t is of token t - 1, the first of the last. With synthetic_end
// an end token's behaviour log-prob becomes 0. With retokenise token_ids become those of the text,
// which may be more or fewer than the log-probs, and hashed_ids keeps the drawn ones. finish_reason
// is set already.
//   INTERNAL  the text of the ids cannot be encoded
absl::Status SpoilRecord(const EngineFaults& faults, uint64_t seed, const Tokenizer& tokenizer,
                         FinishedCompletion& completion);

}  // namespace tandem::rollout
