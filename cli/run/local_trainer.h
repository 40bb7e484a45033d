// LocalTrainer: the ranks of a trainer as child processes on this machine, which start and end
// together. The launcher uses it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/io/child_process.h"
#include "common/base/exit_codes.h"

namespace tandem::cli {

// True for the exit codes with which a process of the project says why it ended (1 to 10, 130,
// 143). After anything else, the process died.
bool SpeaksForItself(const ChildEnd& end);

// How the trainer ended: the rank that tells why, and the exit code for the run.
struct TrainerEnd {
  const ChildProcess* rank = nullptr;  // valid until the next Start
  ChildEnd end;
  ExitCode exit_code = ExitCode::kOk;
};

// Thread-compatible. Start it from a thread that lives as long as the process (child_process.h).
// The destructor kills running ranks.
class LocalTrainer {
 public:
  // Starts `num_ranks` processes of `argv`. Several ranks meet on a free port of this machine. Logs
  // go to `logs`/trainer.log and trainer_N.log. Earlier ranks must have been stopped.
  //   UNAVAILABLE  the program or a log cannot be opened; ranks that had started were killed
  absl::Status Start(const std::string& logs, int64_t num_ranks,
                     const std::vector<std::string>& argv);

  bool running() const { return !ranks_.empty(); }
  LinePipe& output() { return ranks_.front()->output(); }  // of rank 0; while running

  // Returns the end of the trainer after rank 0 ended, or after another rank ended and rank 0 did
  // not follow it. Other ranks may still run then, so call Stop. An end is returned once. Never
  // waits.
  std::optional<TrainerEnd> Poll();

  // Sends a signal to rank 0, which tells the other ranks.
  void Signal(int signal);

  // Sends SIGTERM to rank 0, which may take `seconds` to save and end, and then to the others,
  // which have `others_seconds`. Kills the ranks that still run.
  void Stop(double seconds, double others_seconds);

 private:
  std::vector<std::unique_ptr<ChildProcess>> ranks_;
  double rank_ended_at_ = 0;  // when the first rank but 0 ended with a known exit code; 0: none
};

}  // namespace tandem::cli
