// LineProcess: a program of the user that is written lines and writes lines. It is started, waited
// for with a deadline, and killed. Used by subprocess_reward.cc, python_reward.cc and
// environment_worker.cc, which know what the lines say.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"

namespace tandem {

struct LineProgram {
  std::string who;                       // opens messages: "reward program"
  std::vector<std::string> command;      // program and arguments; no shell
  std::vector<std::string> environment;  // "NAME=VALUE", over those of this process
  // Off: lines pass through its standard input and output. On: it reads them from descriptor 3 and
  // writes them to descriptor 4, its standard output is its standard error, that is this process's,
  // and it leads a process group, which is killed with it.
  bool is_apart = false;
  size_t longest_line = 1 << 20;  // bytes that it may write without a line end
  int64_t memory_limit_mib = 0;   // of its group, of a program that is apart; 0: none
};

// Blocks SIGPIPE on this thread: a write to a program or a connection that is gone then fails with
// EPIPE.
void BlockSigpipe();

// Use from one thread, which blocks SIGPIPE; but Wake from any.
class LineProcess {
 public:
  // `end` must outlive it.
  LineProcess(LineProgram program, EndSign* end);
  ~LineProcess();  // Stop
  LineProcess(const LineProcess&) = delete;
  LineProcess& operator=(const LineProcess&) = delete;

  bool is_running() const { return pid_ > 0; }
  const std::vector<std::string>& command() const { return program_.command; }

  // UNAVAILABLE  the program cannot be started (named)
  absl::Status Start();

  // Kills it, with its group where it is apart. What it wrote and nobody read is lost.
  void Stop();

  // Whether a whole line waits.
  bool HasLine() const { return unread_.find('\n') != std::string::npos; }

  // The next line, without its end. Meanwhile writes `*unsent`, and shortens it by what was written:
  // a program that waits until its answers are read would else wait for ever.
  //   UNAVAILABLE         it ended (how), or does not read
  //   DEADLINE_EXCEEDED   none until `deadline`, in MonotonicSeconds
  //   RESOURCE_EXHAUSTED  its group took more than memory_limit_mib
  //   INVALID_ARGUMENT    a line over longest_line
  //   CANCELLED           `end` was given
  //   ABORTED             Wake was called, and no line waits
  absl::StatusOr<std::string> NextLine(std::string* unsent, double deadline);

  // The call of NextLine that waits now, or else the next one, waits no longer: there is more to
  // write.
  void Wake();

 private:
  struct Pipes {
    int to_child[2] = {-1, -1};
    int from_child[2] = {-1, -1};
  };
  absl::Status OpenPipes(Pipes* pipes) const;
  int Spawn(const Pipes& pipes);
  absl::Status Read();
  absl::Status Write(std::string* lines);
  // Waits until the program can be read from, or written to where `writes`. Returns the latter.
  absl::StatusOr<bool> WaitReady(bool writes, double deadline);
  absl::Status CheckMemory();
  bool HasExited() const;
  // What became of it, now that it takes or gives no more: " (exit code 1)".
  std::string HowItEnded();

  const LineProgram program_;
  EndSign* const end_;
  pid_t pid_ = -1;
  int to_child_ = -1, from_child_ = -1;
  int wake_ = -1;  // an eventfd
  std::string unread_;
  double memory_checked_ = 0;  // MonotonicSeconds
};

}  // namespace tandem
