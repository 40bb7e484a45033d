// RankProcesses: runs the ranks of one node as child processes. It prefixes their output lines with
// the rank or writes them to files, passes signals on, and returns the exit code of the first
// failure. `tandem ranks` uses it.
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
  std::string logs;               // directory for rank_N.log; empty: print the lines
  double grace_seconds = 30;      // for the other ranks after one failed
  bool colour_output = false;     // colour the prefixes on standard output
  bool colour_errors = false;     // and on standard error
};

// How one rank ended. `stopped`: this launcher had told it to.
struct RankEnd {
  int rank = 0;
  ChildEnd end;
  bool stopped = false;
};

// The exit code of a launch whose ranks ended in this order: the first that is not 0. A code that
// is a cause has precedence over code 10 (another rank was lost), which is a consequence, and both
// have precedence over ranks that were told to stop.
int ExitCodeOfRanks(const std::vector<RankEnd>& ends);

// For one launch; use from the main thread. When this process is killed, the kernel kills the
// ranks.
class RankProcesses {
 public:
  // `stop` must outlive this.
  RankProcesses(RanksPlan plan, const StopSignal* stop);

  //   UNAVAILABLE  the program or a log cannot be opened; ranks that had started were killed
  absl::Status Start();

  // Waits until all ranks have ended, and returns the exit code. The first stop signal is passed on
  // to every rank. A second one ends this process, and with it the ranks.
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
  double grace_ends_ = 0;  // monotonic seconds; 0: no rank failed
  bool stopping_ = false;  // by this launcher, after the grace
};

// Finds a program as a shell does: a name without a slash is searched for in the folders of `path`
// (PATH), and then in `beside`.
//   NOT_FOUND  it is in none of them
absl::StatusOr<std::string> FindProgram(const std::string& name, const std::string& path,
                                        const std::string& beside);

}  // namespace tandem::cli
