#include "cli/io/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"

namespace tandem::cli {
namespace {

absl::Status Failed(const ChildSpec& spec, const std::string& what, int error) {
  return Unavailable(spec.name, ": ", what, ": ", strerror(error));
}

// Descriptors of the child. Output without a pipe (-1) goes to the log.
struct ChildFiles {
  int log = -1;
  int input = -1;  // -1: nothing to read
  int output = -1;
  int errors = -1;
  int failure = -1;  // the child writes errno here if it cannot execute the program
};

// Runs in the child. Between fork and exec only async-signal-safe calls are allowed.
[[noreturn]] void RunChild(char* const* argv, char* const* variables, pid_t parent,
                           int death_signal, const ChildFiles& files) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, death_signal);
  if (getppid() != parent) _exit(127);  // the launcher died before prctl
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGINT, SIG_DFL);
  signal(SIGTERM, SIG_DFL);
  signal(SIGPIPE, SIG_DFL);
  dup2(files.input >= 0 ? files.input : open("/dev/null", O_RDONLY), STDIN_FILENO);
  dup2(files.output >= 0 ? files.output : files.log, STDOUT_FILENO);
  dup2(files.errors >= 0 ? files.errors : files.log, STDERR_FILENO);
  execve(argv[0], argv, variables);
  const int error = errno;
  if (write(files.failure, &error, sizeof(error)) < 0) _exit(126);
  _exit(127);
}

// The pipes of one start. The destructor closes the ends that nobody took over.
struct Pipes {
  // A pair of sockets, whose send can be told not to raise SIGPIPE when the child has ended.
  int input[2] = {-1, -1};
  int output[2] = {-1, -1};
  int errors[2] = {-1, -1};
  int failure[2] = {-1, -1};

  bool Open(const ChildSpec& spec) {
    return (!spec.pipe_input || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, input) == 0) &&
           (!spec.pipe_output || pipe2(output, O_CLOEXEC) == 0) &&
           (!spec.pipe_errors || pipe2(errors, O_CLOEXEC) == 0) && pipe2(failure, O_CLOEXEC) == 0;
  }
  static int Release(int& fd) { return std::exchange(fd, -1); }
  static void Close(int& fd) {
    if (fd >= 0) close(Release(fd));
  }
  ~Pipes() {
    for (int* const pair : {input, output, errors, failure}) {
      Close(pair[0]);
      Close(pair[1]);
    }
  }
};

// The child's own variables, and those of this process that it does not replace. Of two equal names
// getenv finds the first and a shell the last.
std::vector<char*> VariablesOf(const ChildSpec& spec) {
  std::vector<char*> variables;
  for (const std::string& variable : spec.environment) {
    variables.push_back(const_cast<char*>(variable.c_str()));
  }
  const auto is_replaced = [&](const std::string_view own) {
    const std::string_view name = own.substr(0, own.find('=') + 1);
    return std::ranges::any_of(spec.environment, [&](const std::string& variable) {
      return std::string_view(variable).starts_with(name);
    });
  };
  for (char** own = environ; *own != nullptr; ++own) {
    if (!is_replaced(*own)) variables.push_back(*own);
  }
  variables.push_back(nullptr);
  return variables;
}

}  // namespace

LinePipe::LinePipe(int fd, size_t longest_line) : fd_(fd), longest_line_(longest_line) {
  if (fd_ >= 0) fcntl(fd_, F_SETFL, O_NONBLOCK);
}

LinePipe::~LinePipe() {
  if (fd_ >= 0) close(fd_);
}

std::vector<std::string> LinePipe::Lines() {
  std::vector<std::string> lines;
  char buffer[4096];
  while (fd_ >= 0) {
    const ssize_t count = read(fd_, buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    partial_.append(buffer, static_cast<size_t>(count));
    size_t begin = 0;
    for (size_t end; (end = partial_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      lines.push_back(partial_.substr(begin, end - begin));
    }
    partial_.erase(0, begin);
    if (partial_.size() > longest_line_) lines.push_back(Rest());
  }
  return lines;
}

std::string LinePipe::Rest() { return std::exchange(partial_, {}); }

std::string ChildEnd::ToString() const {
  if (signal != 0) return absl::StrCat("signal ", signal, " (", strsignal(signal), ")");
  return absl::StrCat("exit code ", exit_code);
}

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(const ChildSpec& spec) {
  int log_fd = -1;
  if (!spec.log_path.empty()) {
    log_fd = open(spec.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (log_fd < 0) return Failed(spec, spec.log_path, errno);
  }
  const int64_t log_begin = log_fd < 0 ? 0 : lseek(log_fd, 0, SEEK_END);
  Pipes pipes;
  if (!pipes.Open(spec)) {
    const int error = errno;
    Pipes::Close(log_fd);
    return Failed(spec, "pipe", error);
  }
  std::vector<char*> argv;
  for (const std::string& argument : spec.argv) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const std::vector<char*> variables = VariablesOf(spec);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    RunChild(argv.data(), variables.data(), parent, spec.death_signal,
             {.log = log_fd,
              .input = pipes.input[1],
              .output = pipes.output[1],
              .errors = pipes.errors[1],
              .failure = pipes.failure[1]});
  }
  const int fork_error = errno;
  Pipes::Close(log_fd);
  if (pid < 0) return Failed(spec, "fork", fork_error);
  Pipes::Close(pipes.failure[1]);
  int exec_error = 0;
  if (read(pipes.failure[0], &exec_error, sizeof(exec_error)) == sizeof(exec_error)) {
    waitpid(pid, nullptr, 0);
    return Failed(spec, spec.argv[0], exec_error);
  }
  return std::unique_ptr<ChildProcess>(
      new ChildProcess(spec, pid, log_begin, Pipes::Release(pipes.input[0]),
                       Pipes::Release(pipes.output[0]), Pipes::Release(pipes.errors[0])));
}

ChildProcess::ChildProcess(ChildSpec spec, pid_t pid, int64_t log_begin, int input_fd,
                           int output_fd, int error_fd)
    : spec_(std::move(spec)),
      pid_(pid),
      log_begin_(log_begin),
      input_fd_(input_fd),
      output_(output_fd, spec_.longest_line),
      errors_(error_fd, spec_.longest_line) {}

ChildProcess::~ChildProcess() {
  Stop(0);
  if (input_fd_ >= 0) close(input_fd_);
}

absl::Status ChildProcess::Write(std::string_view text) {
  while (!text.empty()) {
    const ssize_t sent = send(input_fd_, text.data(), text.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return Failed(spec_, "standard input", errno);
    text.remove_prefix(static_cast<size_t>(sent));
  }
  return absl::OkStatus();
}

std::optional<ChildEnd> ChildProcess::Poll() {
  if (end_.has_value()) return end_;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  ChildEnd end;
  if (WIFSIGNALED(status)) end.signal = WTERMSIG(status);
  end.exit_code = end.signal != 0 ? 128 + end.signal : WEXITSTATUS(status);
  end_ = end;
  kill(-pid_, SIGKILL);  // processes that the child started, such as a reward program
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

}  // namespace tandem::cli
