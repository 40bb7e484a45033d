// ProcessGroup: the processes (ranks) of one trainer. Rank 0 runs the loop and talks to the rollout
// servers; the other ranks do the work that rank 0 commands. A trainer of one process has a process
// group too, for which nothing is opened.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/exit_codes.h"
#include "common/model/numerics.h"
#include "common/observe/health.h"
#include "common/options/options.h"
#include "common/process/stop_signal.h"
#include "common/rendezvous/rank_environment.h"
#include "trainer/ranks/learner.h"
#include "trainer/ranks/rank_collectives.h"

namespace tandem::trainer {

// RankOptions: options of a trainer of several processes. The launcher decides how many processes
// there are (common/rendezvous/rank_environment.h).

struct RankOptions {
  double meet_seconds = 300;      // until all ranks have found each other
  double deadline_seconds = 600;  // for one collective operation
  double lag_seconds = 30;        // after which a rank that others wait for is named
  bool shard_parameters = false;
  double silence_seconds = 60;  // that rank 0 may be silent while others wait
};
void BindOptions(OptionBinder& binder, RankOptions& options);

// Its collectives are of one thread at a time; the other methods are for the thread that joined.
class ProcessGroup {
 public:
  // Meets the other ranks of this launch; waits for them. `run_name` and the resolved configuration
  // must be those of rank 0. With kCuda the ranks are joined by NCCL too, each on its thread's
  // current device. Errors carry their exit code.
  //   kUsage           the launcher's variables do not fit together, or the configuration is not
  //                    that of rank 0
  //   kRankLost        not all ranks came
  //   kBadModelOrData  this build has no NCCL, or the device cannot be used
  static absl::StatusOr<std::unique_ptr<ProcessGroup>> Join(const comm::RankEnvironment& self,
                                                            const RankOptions& options,
                                                            Device device,
                                                            const std::string& run_name,
                                                            const std::string& resolved_config);
  ~ProcessGroup();

  int rank() const;
  int size() const;
  bool alone() const { return size() == 1; }

  // What CreatePolicyLearner exchanges tensors by. Null when alone.
  RankCollectives collectives() const;

  // Rank 0: the learner that has all ranks do what `own` does. Must not outlive this object.
  std::unique_ptr<Learner> Lead(std::unique_ptr<Learner> own) const;

  // Rank 0, once: from here on a signal that asks another rank to stop (its pod is evicted) counts
  // as one that `stop` received. `stop` must outlive this object.
  void TakeStopsOfOthers(StopSignal* stop);

  // Rank 0, last: the other ranks end with this exit code too, so that a launcher that looks at
  // each of them sees one outcome. Waits up to two seconds until they have heard it.
  void End(ExitCode code) const;

  // The other ranks: does what rank 0 commands until the run ends. Errors carry their exit code:
  // kRankLost where another rank is lost, else that of rank 0. `heartbeat` rests while there is no
  // command.
  absl::Status Follow(Learner& own, const StopSignal& stop, Heartbeat& heartbeat) const;

  // Writes c10d's last operations on this rank to flight_rank_N.json in `directory`: what was under
  // way when a rank was lost. A failure is logged.
  void RecordFlight(const std::string& directory) const;

 private:
  struct Members;
  explicit ProcessGroup(std::unique_ptr<Members> members);
  const std::unique_ptr<Members> members_;
};

}  // namespace tandem::trainer
