// Launcher: rollout servers and a trainer as child processes of one run; shows the run while it
// lives and leaves nothing behind when it ends. `tandem run` and `tandem demo` use it.
#ifndef TANDEM_DEPLOY_TANDEM_LAUNCHER_H_
#define TANDEM_DEPLOY_TANDEM_LAUNCHER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/exit_codes.h"
#include "common/base/stop_signal.h"
#include "deploy/tandem/child_process.h"
#include "deploy/tandem/live_line.h"
#include "deploy/tandem/local_servers.h"
#include "deploy/tandem/progress_view.h"

namespace tandem::front {

struct LaunchPlan {
  std::string logs;  // directory; <name>.log and the servers' port files go there
  int64_t num_servers = 1;
  int64_t num_ranks = 1;  // of the trainer; where several, they meet on a free port of this machine
  int64_t num_steps = 0;  // for the progress bar
  double ready_seconds = 300;
  double stop_seconds = 120;

  LocalServers::Argv server_argv;
  std::function<std::vector<std::string>(const std::vector<std::string>& addresses)> trainer_argv;
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
  // servers. A child that ends by itself ends the run; which one, how, and its last log lines are
  // printed. Exit code: the trainer's own where it said something (2..10, 130, 143), kChildDied for
  // a server or a signal.
  LaunchResult Run();

 private:
  bool StartServers();
  bool WaitUntilReady();
  bool StartTrainer();
  void Watch();
  void Relay();
  bool ServerEnded();
  bool RankEnded();
  void Explain(const ChildProcess& child, const ChildEnd& end);
  bool Fail(const absl::Status& status);
  void TearDown();

  const LaunchPlan plan_;
  const StopSignal* const stop_;
  LiveLine* const live_;
  ProgressView view_;
  LocalServers servers_;
  std::unique_ptr<ChildProcess> trainer_;  // rank 0
  std::vector<std::unique_ptr<ChildProcess>> other_ranks_;
  double rank_ended_at_ = 0;  // the first of the others, with a code of its own; 0: none has
  ExitCode exit_code_ = ExitCode::kOk;
};

}  // namespace tandem::front

#endif  // TANDEM_DEPLOY_TANDEM_LAUNCHER_H_
