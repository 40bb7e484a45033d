// ChildProcess: a program that this process starts, with its output in a log file or a pipe. It
// cannot outlive its parent. The launchers of `tandem run` and `tandem ranks` use it, and `tandem
// drift compare` for the engines that it asks.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem::cli {

// LinePipe: the read end of a pipe into which a child writes text, as whole lines.
// Thread-compatible. It never waits and holds at most one line.
class LinePipe {
 public:
  // Owns `fd` and makes it non-blocking. -1 stands for a pipe that stays empty.
  explicit LinePipe(int fd, size_t longest_line = kLongestLine);
  ~LinePipe();
  LinePipe(const LinePipe&) = delete;
  LinePipe& operator=(const LinePipe&) = delete;

  int fd() const { return fd_; }

  // The lines that arrived since the last call, without line ends. Text after the last line end is
  // kept for the next call, but a line longer than `longest_line` is returned in pieces.
  std::vector<std::string> Lines();

  // The text that was written without a line end. Call it when the child has ended.
  std::string Rest();

  static constexpr size_t kLongestLine = 64 << 10;  // bytes

 private:
  const int fd_;
  const size_t longest_line_;
  std::string partial_;
};

struct ChildSpec {
  std::string name;               // for messages: "trainer", "rollout_server 0"
  std::vector<std::string> argv;  // argv[0] is a path
  std::string log_path;      // output that is not piped is appended here; empty if all is piped
  bool pipe_output = false;  // standard output goes to output()
  bool pipe_errors = false;  // standard error goes to errors()
  bool pipe_input = false;   // standard input is what Write sends, else empty
  size_t longest_line = LinePipe::kLongestLine;  // of output() and errors(), in bytes
  int death_signal = SIGTERM;  // the kernel sends it to the child when the parent dies
  // "NAME=VALUE" variables in addition to this process's own, which they override.
  std::vector<std::string> environment;
};

// How a child ended: with an exit code or by a signal.
struct ChildEnd {
  int exit_code = 0;             // 128 + signal if a signal ended it
  int signal = 0;                // 0: it exited by itself
  std::string ToString() const;  // "exit code 3", "signal 9 (Killed)"
};

// Thread-compatible. Start it from a thread that lives as long as this process, because the kernel
// sends the death signal when the starting thread ends. The destructor kills a running child and
// reaps it.
class ChildProcess {
 public:
  // The child gets a process group of its own, so that a Ctrl-C at the terminal reaches only this
  // process, which decides what to pass on.
  //   UNAVAILABLE  the program does not exist, the log cannot be opened, or fork failed (named)
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(const ChildSpec& spec);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  const std::string& name() const { return spec_.name; }
  const std::string& log_path() const { return spec_.log_path; }
  pid_t pid() const { return pid_; }
  int64_t log_begin() const { return log_begin_; }  // size of the log in bytes before this start
  LinePipe& output() { return output_; }            // standard output; empty unless it is piped
  LinePipe& errors() { return errors_; }            // standard error; empty unless it is piped

  // Sends `text` to the child's standard input. Waits while the child does not read, so the child
  // must not wait for this process meanwhile. Needs pipe_input.
  //   UNAVAILABLE  the child has closed its input or has ended
  absl::Status Write(std::string_view text);

  // Returns how the child ended, or nullopt while it runs. Never waits.
  std::optional<ChildEnd> Poll();

  // Sends a signal to the child alone. Does nothing if it has ended.
  void Signal(int signal);

  // Sends SIGTERM and, after `grace_seconds`, SIGKILL to the whole group. Waits for the end.
  ChildEnd Stop(double grace_seconds);

 private:
  ChildProcess(ChildSpec spec, pid_t pid, int64_t log_begin, int input_fd, int output_fd,
               int error_fd);

  const ChildSpec spec_;
  const pid_t pid_;
  const int64_t log_begin_;
  const int input_fd_;  // -1: none
  LinePipe output_, errors_;
  std::optional<ChildEnd> end_;
};

// The last `num_lines` lines of a file from byte `begin` on. Empty if the file cannot be read.
std::vector<std::string> LastLines(const std::string& path, size_t num_lines, int64_t begin = 0);

}  // namespace tandem::cli
