// Launcher: rollout servers and a trainer as child processes of one run; shows the run while it
// lives, starts again what died, and leaves nothing behind when it ends. `tandem run` and `tandem
// demo` use it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/io/child_process.h"
#include "cli/io/live_line.h"
#include "cli/run/local_servers.h"
#include "cli/run/local_trainer.h"
#include "cli/run/progress_view.h"
#include "cli/run/restarts.h"
#include "common/base/exit_codes.h"
#include "common/process/stop_signal.h"

namespace tandem::cli {

struct LaunchPlan {
  std::string logs;  // directory; <name>.log and the servers' port files go there
  int64_t num_servers = 1;
  int64_t num_ranks = 1;  // of the trainer; where several, they meet on a free port of this machine
  int64_t num_steps = 0;  // for the progress bar
  double ready_seconds = 300;
  double stop_seconds = 120;
  RestartLimits restarts;
  std::string restarts_file;  // a line for each restart (docs/run_directory.md); empty: none

  LocalServers::Argv server_argv;
  // `again`: the trainer goes on from its last checkpoint.
  std::function<std::vector<std::string>(const std::vector<std::string>& addresses, bool again)>
      trainer_argv;
};

struct LaunchResult {
  ExitCode exit_code = ExitCode::kOk;
  RunSummary summary;
};

// One run; use from the main thread. However Run returns, no child is left.
class Launcher {
 public:
  // `stop` and `live` must outlive this.
  Launcher(LaunchPlan plan, const StopSignal* stop, LiveLine* live);

  // Starts the servers, waits until they are ready, starts the trainer, and waits for its end. A
  // signal is passed on: the trainer's rank 0 saves and ends, and the others with it, then the
  // servers. Of a child that ends by itself it is printed which one, how, and its last log lines;
  // then it is started again, as far as plan.restarts go: a server, which may not have served yet,
  // at its address, where the trainer gives it the weights; the trainer with all its ranks from the
  // last checkpoint, or from the start where there is none, with the servers that run. A child that
  // is not started again ends the run. Exit code: the trainer's own where it said something (2..10,
  // or a stop's), kChildDied for a server or a signal.
  LaunchResult Run();

 private:
  bool StartServers();
  bool WaitUntilReady();
  bool StartTrainer(bool again);
  void Watch();
  void WaitForOutput();
  void Relay();
  bool KeepServers(bool at_start);
  bool ServersAreUp() const;
  bool KeepTrainer();
  bool TrainerDied(const TrainerEnd& end);
  void PassOnStop();
  std::optional<double> PlanRestart(const ChildProcess& child, const ChildEnd& end, bool is_server);
  void Explain(const ChildProcess& child, const ChildEnd& end);
  bool Fail(const absl::Status& status);
  void TearDown();

  const LaunchPlan plan_;
  const StopSignal* const stop_;
  LiveLine* const live_;
  ProgressView view_;
  LocalServers servers_;
  LocalTrainer trainer_;
  Restarts restarts_;
  // Monotonic seconds. When a process is to be started again, and until when a server that was must
  // be ready; 0: it runs.
  double trainer_due_ = 0;
  std::vector<double> servers_due_, servers_ready_by_;
  double kill_at_ = 0;  // the trainer, which was told to stop; 0: it was not
  ExitCode exit_code_ = ExitCode::kOk;
};

}  // namespace tandem::cli
