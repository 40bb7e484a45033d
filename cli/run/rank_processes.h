// RankProcesses: the ranks of one node as child processes: their lines with their rank before them
// or in files, signals passed on, the first failure's exit code, and nobody left behind. `tandem
// ranks` uses it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/io/child_process.h"
#include "cli/run/node_ranks.h"
#include "common/process/stop_signal.h"

namespace tandem::cli {

struct RanksPlan {
  NodeRanks node;                 // with a port
  std::vector<std::string> argv;  // of every rank; argv[0] is a path
  std::string logs;               // directory for rank_N.log; empty: lines come out of this process
  double grace_seconds = 30;      // for the others once one rank failed
  bool colour_output = false;     // of the prefixes on standard output, and on standard error
  bool colour_errors = false;
};

// How one rank ended; `stopped`: after this launcher had told it to.
struct RankEnd {
  int rank = 0;
  ChildEnd end;
  bool stopped = false;
};

// The exit code of a launch whose ranks ended in this order: the first that is not 0. A rank that
// says another one is lost (10) speaks of a consequence: one that ended by itself with another
// code goes before it, and so does any before one that was told to stop.
int ExitCodeOfRanks(const std::vector<RankEnd>& ends);

// One launch; use from the main thread. When this process is killed, the kernel kills the ranks.
class RankProcesses {
 public:
  // `stop` must outlive this.
  RankProcesses(RanksPlan plan, const StopSignal* stop);

  //   UNAVAILABLE  a program or a log that cannot be opened; ranks that had started were killed
  absl::Status Start();

  // Until the last one ended. A signal is passed on to every rank once and then waited for (a
  // second one ends this process, and with it the ranks). Returns the exit code.
  int Wait();

 private:
  void Relay(size_t local_rank, bool last);
  void TakeEnds();
  void PassOnSignal();
  void EndAfterGrace();
  void Explain(const RankEnd& end) const;

  const RanksPlan plan_;
  const StopSignal* const stop_;
  std::vector<std::unique_ptr<ChildProcess>> ranks_;
  std::vector<bool> ended_;
  std::vector<RankEnd> ends_;
  bool passed_on_ = false;
  double grace_ends_ = 0;  // monotonic; 0: nobody failed
  bool stopping_ = false;  // by this launcher, after the grace
};

// As a shell finds it: a path is itself; a name is looked for in the folders of `path` (PATH), then
// in `beside`.
//   NOT_FOUND  in none of them
absl::StatusOr<std::string> FindProgram(const std::string& name, const std::string& path,
                                        const std::string& beside);

}  // namespace tandem::cli
