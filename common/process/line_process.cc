#include "common/process/line_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/process/process_group.h"

extern char** environ;

namespace tandem {
namespace {

constexpr double kLookAtEndSeconds = 0.1;      // how often a wait looks whether the run ends
constexpr double kMeasureMemorySeconds = 0.2;  // how often it measures
constexpr int kReapTries = 40;                 // of kReapMs each, for a program that closed a pipe
constexpr int kReapMs = 5;
constexpr int kApartInput = 3, kApartOutput = 4;
constexpr int kFirstFree = 10;  // descriptors below are targets of dup2 in the child

std::string Errno(const std::string& what) {
  return absl::StrCat(what, ": ", std::strerror(errno));
}

bool IsEnding(EndSign* end) { return end->WaitFor(std::chrono::milliseconds(0)); }

// A program has no signal blocked or ignored that the trainer's threads have.
void UseDefaultSignals(posix_spawnattr_t* attributes, int more_flags) {
  sigset_t signals;
  sigemptyset(&signals);
  posix_spawnattr_setsigmask(attributes, &signals);
  sigaddset(&signals, SIGPIPE);
  posix_spawnattr_setsigdefault(attributes, &signals);
  posix_spawnattr_setflags(
      attributes, static_cast<short>(POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | more_flags));
}

// This process's variables with those of `over` in their place.
std::vector<std::string> Environment(const std::vector<std::string>& over) {
  std::vector<std::string> variables = over;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const std::string_view name = text.substr(0, text.find('=') + 1);
    const auto replaces = [&](const std::string& other) { return other.starts_with(name); };
    if (std::ranges::none_of(over, replaces)) variables.emplace_back(text);
  }
  return variables;
}

std::vector<char*> Pointers(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

void Close(int* descriptor) {
  if (*descriptor >= 0) close(std::exchange(*descriptor, -1));
}

}  // namespace

void BlockSigpipe() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

LineProcess::LineProcess(LineProgram program, EndSign* end)
    : program_(std::move(program)), end_(end), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

LineProcess::~LineProcess() {
  Stop();
  Close(&wake_);
}

void LineProcess::Wake() {
  const uint64_t one = 1;
  // A counter that is full wakes as well.
  if (write(wake_, &one, sizeof(one)) < 0) return;
}

absl::Status LineProcess::OpenPipes(Pipes* pipes) const {
  if (pipe2(pipes->to_child, O_CLOEXEC) != 0 || pipe2(pipes->from_child, O_CLOEXEC) != 0) {
    return Unavailable(Errno("pipe"));
  }
  // The child's ends lie above the descriptors that they become, so that no dup2 closes another.
  for (int* const end : {&pipes->to_child[0], &pipes->from_child[1]}) {
    const int moved = fcntl(*end, F_DUPFD_CLOEXEC, kFirstFree);
    if (moved < 0) return Unavailable(Errno("pipe"));
    Close(end);
    *end = moved;
  }
  return absl::OkStatus();
}

// Returns the error number of the start, 0 for none.
int LineProcess::Spawn(const Pipes& pipes) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  if (program_.is_apart) {
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, pipes.to_child[0], kApartInput);
    posix_spawn_file_actions_adddup2(&actions, pipes.from_child[1], kApartOutput);
    posix_spawnattr_setpgroup(&attributes, 0);
    UseDefaultSignals(&attributes, POSIX_SPAWN_SETPGROUP);
  } else {
    posix_spawn_file_actions_adddup2(&actions, pipes.to_child[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, pipes.from_child[1], STDOUT_FILENO);
    UseDefaultSignals(&attributes, 0);
  }
  const std::vector<std::string> variables = Environment(program_.environment);
  std::vector<char*> arguments = Pointers(program_.command);
  const int error = posix_spawnp(&pid_, arguments[0], &actions, &attributes, arguments.data(),
                                 Pointers(variables).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

absl::Status LineProcess::Start() {
  Stop();
  Pipes pipes;
  const absl::Status opened = OpenPipes(&pipes);
  const int error = opened.ok() ? Spawn(pipes) : 0;
  Close(&pipes.to_child[0]);
  Close(&pipes.from_child[1]);
  to_child_ = pipes.to_child[1];
  from_child_ = pipes.from_child[0];
  if (!opened.ok() || error != 0) {
    pid_ = -1;
    Stop();
    if (!opened.ok()) return opened;
    return Unavailable("cannot start ", program_.who, " '", program_.command[0],
                       "': ", std::string(std::strerror(error)));
  }
  fcntl(to_child_, F_SETFL, O_NONBLOCK);
  fcntl(from_child_, F_SETFL, O_NONBLOCK);
  return absl::OkStatus();
}

void LineProcess::Stop() {
  Close(&to_child_);
  Close(&from_child_);
  if (pid_ > 0) {
    kill(program_.is_apart ? -pid_ : pid_, SIGKILL);
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  pid_ = -1;
  unread_.clear();
}

bool LineProcess::HasExited() const {
  siginfo_t info = {};
  return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
         info.si_pid == pid_;
}

// Leaves the process to be reaped by Stop, so that its id, which is that of its group, is no other's
// until the group has been killed.
std::string LineProcess::HowItEnded() {
  for (int i = 0; i < kReapTries; ++i) {
    siginfo_t info = {};
    if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0) break;
    if (info.si_pid == pid_) {
      if (info.si_code == CLD_EXITED) return absl::StrCat(" (exit code ", info.si_status, ")");
      return absl::StrCat(" (signal ", info.si_status, ", ", strsignal(info.si_status), ")");
    }
    poll(nullptr, 0, kReapMs);
  }
  return " (it closed its pipe)";
}

absl::Status LineProcess::CheckMemory() {
  if (program_.memory_limit_mib == 0) return absl::OkStatus();
  const double now = MonotonicSeconds();
  if (now < memory_checked_ + kMeasureMemorySeconds) return absl::OkStatus();
  memory_checked_ = now;
  if (GroupMemoryBytes(pid_) >> 20 <= program_.memory_limit_mib) return absl::OkStatus();
  return ResourceExhausted(program_.who, " took more than ", program_.memory_limit_mib, " MiB");
}

absl::StatusOr<bool> LineProcess::WaitReady(bool writes, double deadline) {
  for (;;) {
    if (IsEnding(end_)) return Cancelled("the run ends while the ", program_.who, " works");
    TANDEM_RETURN_IF_ERROR(CheckMemory());
    const double left = deadline - MonotonicSeconds();
    if (left <= 0) return DeadlineExceeded(program_.who, " gave no answer");
    pollfd ends[3] = {{.fd = wake_, .events = POLLIN, .revents = 0},
                      {.fd = from_child_, .events = POLLIN, .revents = 0},
                      {.fd = to_child_, .events = POLLOUT, .revents = 0}};
    const double wait = std::min(left, kLookAtEndSeconds);
    const int ready = poll(ends, writes ? 3 : 2, static_cast<int>(std::ceil(wait * 1000)));
    if (ready > 0 && ends[0].revents != 0) {
      uint64_t count = 0;
      if (read(wake_, &count, sizeof(count)) > 0) return Aborted("woken");
    }
    if (ready > 0) return writes && ends[2].revents != 0;
    // What it started may still hold its end of the pipe.
    if (ready == 0 && HasExited()) return Unavailable(program_.who, " ended", HowItEnded());
    if (ready < 0 && errno != EINTR) return Unavailable(Errno("poll"));
  }
}

absl::Status LineProcess::Write(std::string* lines) {
  const ssize_t n = write(to_child_, lines->data(), lines->size());
  if (n > 0) lines->erase(0, static_cast<size_t>(n));
  if (n >= 0 || errno == EAGAIN || errno == EINTR) return absl::OkStatus();
  if (errno == EPIPE) return Unavailable(program_.who, " ended", HowItEnded());
  return Unavailable(Errno(program_.who + " does not read"));
}

absl::Status LineProcess::Read() {
  char buffer[65536];
  const ssize_t n = read(from_child_, buffer, sizeof(buffer));
  if (n == 0) return Unavailable(program_.who, " ended", HowItEnded());
  if (n > 0) unread_.append(buffer, static_cast<size_t>(n));
  if (n >= 0 || errno == EAGAIN || errno == EINTR) return absl::OkStatus();
  return Unavailable(Errno("reading from the " + program_.who));
}

absl::StatusOr<std::string> LineProcess::NextLine(std::string* unsent, double deadline) {
  for (size_t searched = 0;;) {
    const size_t end = unread_.find('\n', searched);
    if (end != std::string::npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    searched = unread_.size();
    if (unread_.size() > program_.longest_line) {
      return InvalidArgument(program_.who, " wrote a line over ", program_.longest_line >> 20,
                             " MiB");
    }
    TANDEM_ASSIGN_OR_RETURN(const bool can_write, WaitReady(!unsent->empty(), deadline));
    if (can_write) TANDEM_RETURN_IF_ERROR(Write(unsent));
    if (!can_write || unsent->empty()) TANDEM_RETURN_IF_ERROR(Read());
  }
}

}  // namespace tandem
