// The loop of the ranks other than 0: they run the commands of rank 0, one after the other. Rank
// 0's side is remote_learner.h.
#pragma once

#include "absl/status/status.h"
#include "common/observe/health.h"
#include "common/process/stop_signal.h"
#include "trainer/ranks/learner.h"
#include "trainer/ranks/rank_commands.h"

namespace tandem::trainer {

// Does the commands of rank 0 with this rank's learner until rank 0 says that the run is over (OK).
// A stop that a signal requested here is passed on to rank 0, which decides when all ranks end.
// `heartbeat` rests while there is no command.
//   UNAVAILABLE  rank 0 is gone or silent, or another rank is lost
//   CANCELLED    `stop` was requested, and rank 0 said nothing for the link's patience
//   others       those of the learner's methods; the ranks no longer agree, so end the process
absl::Status FollowCommands(Learner& own, const RankLink& link, const StopSignal& stop,
                            Heartbeat& heartbeat);

}  // namespace tandem::trainer
