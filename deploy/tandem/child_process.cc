#include "deploy/tandem/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"

namespace tandem::front {
namespace {

absl::Status Failed(const ChildSpec& spec, const std::string& what, int error) {
  return absl::UnavailableError(absl::StrCat(spec.name, ": ", what, ": ", strerror(error)));
}

// Between fork and exec only calls that are safe there; `failure_fd` tells the parent errno.
[[noreturn]] void RunChild(char* const* argv, char* const* variables, pid_t parent, int log_fd,
                           int output_fd, int failure_fd) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(127);  // the launcher died before prctl
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGINT, SIG_DFL);
  signal(SIGTERM, SIG_DFL);
  signal(SIGPIPE, SIG_DFL);
  const int null_fd = open("/dev/null", O_RDONLY);
  dup2(null_fd, STDIN_FILENO);
  dup2(output_fd >= 0 ? output_fd : log_fd, STDOUT_FILENO);
  dup2(log_fd, STDERR_FILENO);
  execve(argv[0], argv, variables);
  const int error = errno;
  if (write(failure_fd, &error, sizeof(error)) < 0) _exit(126);
  _exit(127);
}

}  // namespace

std::string ChildEnd::ToString() const {
  if (signal != 0) return absl::StrCat("signal ", signal, " (", strsignal(signal), ")");
  return absl::StrCat("exit code ", exit_code);
}

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(const ChildSpec& spec) {
  const int log_fd = open(spec.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (log_fd < 0) return Failed(spec, spec.log_path, errno);
  const int64_t log_begin = lseek(log_fd, 0, SEEK_END);
  int output[2] = {-1, -1};
  int failure[2] = {-1, -1};
  if ((spec.pipe_output && pipe2(output, O_CLOEXEC) != 0) || pipe2(failure, O_CLOEXEC) != 0) {
    close(log_fd);
    return Failed(spec, "pipe", errno);
  }
  std::vector<char*> argv;
  for (const std::string& argument : spec.argv) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  // The first of two equal names is the one that is found.
  std::vector<char*> variables;
  for (const std::string& variable : spec.environment) {
    variables.push_back(const_cast<char*>(variable.c_str()));
  }
  for (char** own = environ; *own != nullptr; ++own) variables.push_back(*own);
  variables.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) RunChild(argv.data(), variables.data(), parent, log_fd, output[1], failure[1]);
  const int fork_error = errno;
  close(log_fd);
  close(failure[1]);
  if (spec.pipe_output) {
    close(output[1]);
    fcntl(output[0], F_SETFL, O_NONBLOCK);
  }
  int exec_error = 0;
  const bool exec_failed =
      pid > 0 && read(failure[0], &exec_error, sizeof(exec_error)) == sizeof(exec_error);
  close(failure[0]);
  if (pid > 0 && !exec_failed) {
    return std::unique_ptr<ChildProcess>(new ChildProcess(spec, pid, log_begin, output[0]));
  }
  if (exec_failed) waitpid(pid, nullptr, 0);
  if (output[0] >= 0) close(output[0]);
  return Failed(spec, exec_failed ? spec.argv[0] : "fork", exec_failed ? exec_error : fork_error);
}

ChildProcess::ChildProcess(ChildSpec spec, pid_t pid, int64_t log_begin, int output_fd)
    : spec_(std::move(spec)), pid_(pid), log_begin_(log_begin), output_fd_(output_fd) {}

ChildProcess::~ChildProcess() {
  Stop(0);
  if (output_fd_ >= 0) close(output_fd_);
}

std::optional<ChildEnd> ChildProcess::Poll() {
  if (end_.has_value()) return end_;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  ChildEnd end;
  if (WIFSIGNALED(status)) end.signal = WTERMSIG(status);
  end.exit_code = end.signal != 0 ? 128 + end.signal : WEXITSTATUS(status);
  end_ = end;
  kill(-pid_, SIGKILL);  // what the child itself started (a reward program)
  return end_;
}

void ChildProcess::Signal(int signal) {
  if (!end_.has_value()) kill(pid_, signal);
}

ChildEnd ChildProcess::Stop(double grace_seconds) {
  if (!Poll().has_value() && grace_seconds > 0) {
    Signal(SIGTERM);
    const double until = MonotonicSeconds() + grace_seconds;
    while (!Poll().has_value() && MonotonicSeconds() < until) poll(nullptr, 0, 20);
  }
  if (!Poll().has_value()) kill(-pid_, SIGKILL);
  while (!Poll().has_value()) poll(nullptr, 0, 5);
  return *end_;
}

std::vector<std::string> ChildProcess::ReadLines() {
  std::vector<std::string> lines;
  if (output_fd_ < 0) return lines;
  char buffer[4096];
  while (true) {
    const ssize_t count = read(output_fd_, buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    partial_line_.append(buffer, static_cast<size_t>(count));
  }
  size_t begin = 0;
  for (size_t end; (end = partial_line_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    lines.push_back(partial_line_.substr(begin, end - begin));
  }
  partial_line_.erase(0, begin);
  return lines;
}

std::vector<std::string> LastLines(const std::string& path, size_t num_lines, int64_t begin) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return {};
  constexpr std::streamoff kTail = 16384;
  const std::streamoff size = file.tellg();
  file.seekg(std::max<std::streamoff>(begin, size - kTail));
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(std::move(line));
  if (lines.size() > num_lines) lines.erase(lines.begin(), lines.end() - num_lines);
  return lines;
}

}  // namespace tandem::front
