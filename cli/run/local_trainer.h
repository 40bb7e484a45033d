// LocalTrainer: the ranks of a trainer as child processes of this machine, which live and end as
// one. The launcher uses it.
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

// True for exit codes by which a trainer says why it ended (1 to 10, 130); with anything else the
// process died.
bool SpeaksForItself(const ChildEnd& end);

// The trainer's end: of the rank that says why, and what to make of it.
struct TrainerEnd {
  const ChildProcess* rank = nullptr;  // valid until the next Start
  ChildEnd end;
  ExitCode exit_code = ExitCode::kOk;
};

// Thread-compatible; start from the thread that lives longest (child_process.h). The destructor
// kills what still runs.
class LocalTrainer {
 public:
  // Starts `num_ranks` processes of `argv`, which meet on a free port of this machine where there
  // are several. Logs go to `logs`/trainer.log and trainer_N.log. What ran before must be stopped.
  //   UNAVAILABLE  the program or a log cannot be opened; ranks that had started were killed
  absl::Status Start(const std::string& logs, int64_t num_ranks,
                     const std::vector<std::string>& argv);

  bool running() const { return !ranks_.empty(); }
  LinePipe& output() { return ranks_.front()->output(); }  // of rank 0; while running

  // How the trainer ended, once rank 0 did, or another rank without rank 0 following it; never
  // waits. Others may still run then: Stop. An end is told once.
  std::optional<TrainerEnd> Poll();

  // To rank 0, which tells the others.
  void Signal(int signal);

  // SIGTERM to rank 0, which may take `seconds` to save and end; then to the others, which have
  // `others_seconds`. SIGKILL to who is left. Not running afterwards.
  void Stop(double seconds, double others_seconds);

 private:
  std::vector<std::unique_ptr<ChildProcess>> ranks_;
  double rank_ended_at_ = 0;  // the first of the others, with a code of its own; 0: none has
};

}  // namespace tandem::cli
