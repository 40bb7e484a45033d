// The learner of all ranks, as rank 0 has it: every method is a command to the other ranks and the
// same work here. The other ranks' side is command_follower.h.
#pragma once

#include <memory>

#include "trainer/ranks/learner.h"
#include "trainer/ranks/rank_commands.h"

namespace tandem::trainer {

// `own` is this rank's learner, and what `link` names outlives the result. Commands are in one
// order over all threads, so tensors that Cast, Keep and Save return may be read from any thread.
// The destructor tells the other ranks to end, and waits up to ten seconds until they say that they
// do. A method that fails with UNAVAILABLE has lost a rank: the error carries kRankLost.
std::unique_ptr<Learner> LeadRanks(std::unique_ptr<Learner> own, const RankLink& link);

}  // namespace tandem::trainer
