// ChildProcess: one program started by the launcher, with its output in files or a pipe, that
// cannot outlive the launcher. The launcher and its tests use it.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/io/line_pipe.h"

namespace tandem::cli {

struct ChildSpec {
  std::string name;               // "trainer", "rollout_server 0": in messages
  std::vector<std::string> argv;  // argv[0] is a path
  std::string log_path;           // what is not piped, appended; empty where both are piped
  bool pipe_output = false;       // standard output to output()
  bool pipe_errors = false;       // standard error to errors()
  int death_signal = SIGTERM;     // what the kernel sends it when the launcher dies
  // "NAME=VALUE", beside the launcher's own variables and before them.
  std::vector<std::string> environment;
};

// How a child ended: an exit code or a signal.
struct ChildEnd {
  int exit_code = 0;             // 128 + signal when a signal ended it
  int signal = 0;                // 0: exited by itself
  std::string ToString() const;  // "exit code 3", "signal 9 (Killed)"
};

// Thread-compatible; start it from the thread that lives as long as the launcher (the kernel ends
// the child when the starting thread ends). The destructor kills what still runs and reaps it.
class ChildProcess {
 public:
  // In a process group of its own, so that a Ctrl-C at the terminal reaches it only through the
  // launcher.
  //   UNAVAILABLE  no such program, the log cannot be opened, or fork failed (named)
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(const ChildSpec& spec);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  const std::string& name() const { return spec_.name; }
  const std::string& log_path() const { return spec_.log_path; }
  pid_t pid() const { return pid_; }
  int64_t log_begin() const { return log_begin_; }  // bytes the log held before this start
  LinePipe& output() { return output_; }            // of standard output; nothing unless piped
  LinePipe& errors() { return errors_; }            // of standard error, likewise

  // How it ended, once it did; never waits.
  std::optional<ChildEnd> Poll();

  // Sends a signal to the child alone; nothing once it ended.
  void Signal(int signal);

  // SIGTERM, then SIGKILL to its whole group after `grace_seconds`. Waits for the end.
  ChildEnd Stop(double grace_seconds);

 private:
  ChildProcess(ChildSpec spec, pid_t pid, int64_t log_begin, int output_fd, int error_fd);

  const ChildSpec spec_;
  const pid_t pid_;
  const int64_t log_begin_;
  LinePipe output_, errors_;
  std::optional<ChildEnd> end_;
};

// The last `num_lines` lines of a file from byte `begin` on; empty when it cannot be read.
std::vector<std::string> LastLines(const std::string& path, size_t num_lines, int64_t begin = 0);

}  // namespace tandem::cli
