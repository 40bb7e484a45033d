// Launcher: runs the rollout servers and the trainer of one run as child processes. It shows the
// progress of the run, restarts children that died, and leaves no child behind when it ends.
// `tandem run` and `tandem demo` use it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/io/child_process.h"
#include "cli/io/live_line.h"
#include "cli/run/local_servers.h"
#include "cli/run/local_trainer.h"
#include "cli/run/progress_view.h"
#include "cli/run_file/launch_options.h"
#include "common/base/exit_codes.h"
#include "common/process/stop_signal.h"

namespace tandem::cli {

inline constexpr double kMaxRestartDelaySeconds = 60;

// True if another start may end differently: after a signal, an internal error (1), a lost rank
// (10), and for a server (`is_server`) that ended as if it had been asked to. False if the cause is
// the command line, a model, the storage or the training itself. Pure.
bool WorthRestart(const ChildEnd& end, bool is_server);

// Restarts: counts the restarts of each process and decides about the next one, within
// max_restarts and restart_delay_seconds of the launch. Pure.
// Thread-compatible.
class Restarts {
 public:
  explicit Restarts(const LaunchOptions& limits) : limits_(limits) {}

  // The process `name` died. Returns the seconds until it is to be restarted, or nullopt if it has
  // been restarted max_restarts times.
  std::optional<double> NextDelay(const std::string& name);

  const std::map<std::string, int64_t>& counts() const { return counts_; }

 private:
  const LaunchOptions limits_;
  std::map<std::string, int64_t> counts_;
};

struct LaunchPlan {
  LaunchOptions launch;       // several ranks meet on a free port of this machine
  std::string logs;           // directory of <name>.log and of the servers' port files
  int64_t num_steps = 0;      // for the progress bar
  std::string restarts_file;  // one line per restart (docs/run_directory.md); empty: none

  LocalServers::Argv server_argv;
  // `again`: the trainer continues from its last checkpoint.
  std::function<std::vector<std::string>(const std::vector<std::string>& addresses, bool again)>
      trainer_argv;
};

struct LaunchResult {
  ExitCode exit_code = ExitCode::kOk;
  RunSummary summary;
};

// For one run; use from the main thread. No child is left when Run returns.
class Launcher {
 public:
  // `stop` and `live` must outlive this.
  Launcher(LaunchPlan plan, const StopSignal* stop, LiveLine* live);

  // Starts the servers, waits until they are ready, starts the trainer, and waits for its end. A
  // stop signal goes to rank 0 of the trainer, which saves and ends with the other ranks; then the
  // servers are stopped.
  //
  // When a child ends by itself, its name, its end and its last log lines are printed, and it is
  // restarted within the limits of plan.launch. A server is restarted at its address, even if it
  // has not served yet, and the trainer pushes the weights to it. The trainer is restarted with all
  // its ranks from the last checkpoint, or from the start if there is none, and the servers keep
  // running. A child that is not restarted ends the run.
  //
  // The exit code is the trainer's if it is one of the project's (2 to 10, or that of a stop), and
  // kChildDied after a server or a signal ended the run.
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
  void PrintError(const absl::Status& status);
  bool Fail(const absl::Status& status);
  void TearDown();

  const LaunchPlan plan_;
  const StopSignal* const stop_;
  LiveLine* const live_;
  ProgressView view_;
  LocalServers servers_;
  LocalTrainer trainer_;
  Restarts restarts_;
  // In monotonic seconds: when a process is to be restarted, and when a restarted server must be
  // ready. 0: the process runs.
  double trainer_due_ = 0;
  std::vector<double> servers_due_, servers_ready_by_;
  double kill_at_ = 0;  // when a trainer that was told to stop is killed; 0: it was not told
  ExitCode exit_code_ = ExitCode::kOk;
};

}  // namespace tandem::cli
