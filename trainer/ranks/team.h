// Team: the processes of one trainer. Rank 0 runs the loop and talks to the servers; the others do
// as it says. One process alone is a team too, and nothing is opened for it.
#ifndef TANDEM_TRAINER_RANKS_TEAM_H_
#define TANDEM_TRAINER_RANKS_TEAM_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/exit_codes.h"
#include "common/model/device.h"
#include "common/observe/heartbeat.h"
#include "common/process/stop_signal.h"
#include "common/rendezvous/rank_environment.h"
#include "trainer/ranks/learner.h"
#include "trainer/ranks/rank_groups.h"
#include "trainer/ranks/rank_options.h"

namespace tandem::trainer {

class Team {
 public:
  // Meets the other ranks of this launch. Waits. `run_name` and the resolved configuration must be
  // those of rank 0. With kCuda the ranks are joined by NCCL too, each on its thread's current
  // device. Errors carry their exit code.
  //   kUsage           variables of the launcher do not fit; a configuration that is not rank 0's
  //   kRankLost        not all ranks came
  //   kBadModelOrData  NCCL: this build has none, or the device cannot be used
  static absl::StatusOr<std::unique_ptr<Team>> Join(const comm::RankEnvironment& self,
                                                    const RankOptions& options, Device device,
                                                    const std::string& run_name,
                                                    const std::string& resolved_config);
  ~Team();

  int rank() const;
  int size() const;
  bool alone() const { return size() == 1; }

  // For CreatePolicyLearner; null groups when alone.
  RankGroups groups() const;

  // Rank 0: the learner of all. Must not outlive the team.
  std::unique_ptr<Learner> Lead(std::unique_ptr<Learner> own) const;

  // Rank 0: from here on a signal that another rank gets (the eviction of its pod) is one that
  // `stop` got, which must outlive the team. Once.
  void TakeStopsOfOthers(StopSignal* stop);

  // Rank 0, last: the others end with this code as well, so that a launcher that looks at each of
  // them sees one outcome. Waits a moment until they have heard it.
  void End(ExitCode code) const;

  // The other ranks: trains as rank 0 says, to the end. Errors carry their exit code (kRankLost
  // where another rank is, else that of rank 0). `heartbeat` rests while there is no order.
  absl::Status Follow(Learner& own, const StopSignal& stop, Heartbeat& heartbeat) const;

  // c10d's last operations on this rank, to flight_rank_N.json in `directory`: what was under way
  // when a rank was lost. Logged where it cannot be written.
  void RecordFlight(const std::string& directory) const;

 private:
  struct Members;
  explicit Team(std::unique_ptr<Members> members);
  const std::unique_ptr<Members> members_;
};

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_RANKS_TEAM_H_
