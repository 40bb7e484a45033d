// AppendToken: what a drawn token adds to its completion. Pure but for the completion. Used by
// engine.cc.
#pragma once

#include <cstdint>

#include "rollout_server/engine/sampling/sampler.h"
#include "rollout_server/engine/schedule/sequence.h"

namespace tandem::rollout {

// `version`: of the weights that drew it. `batch_size`: rows drawn in the step. `now`: monotonic
// seconds, the same for all tokens of a step.
void AppendToken(Sequence& sequence, SampledToken token, WeightVersion version, int32_t batch_size,
                 double now);

}  // namespace tandem::rollout
