#include "common/process/stop_signal.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <vector>

#include "common/base/check.h"
#include "common/base/log.h"

namespace tandem {
namespace {

constexpr int kSignalledExit = 128;  // plus the signal's number, as in a shell

// Everything that a signal handler may touch: lock-free atomics and write(2). The pipe is written
// once and never read, so that every waiter finds it readable from then on.
struct SignalState {
  std::atomic<int> signal{0};
  std::atomic<bool> requested{false};
  std::atomic<bool> installed{false};
  int pipe[2] = {-1, -1};
  struct sigaction saved_term = {};
  struct sigaction saved_int = {};
  struct sigaction saved_pipe = {};
  std::vector<std::byte> stack;  // that handlers run on
  stack_t saved_stack = {};
};
SignalState state;

// Lets handlers run on a stack of their own when a signal interrupts this thread. oneDNN's kernel for
// fp32 products (jit_avx512_common_gemm_f32) uses the stack pointer to address its work space, which
// may lie on the heap, and the frame of a signal would be written over what lies before it. The main
// thread alone needs such a stack: the operating system interrupts it rather than another one, as
// long as it does not block the signal.
void UseOwnStack() {
  state.stack.resize(static_cast<size_t>(::sysconf(_SC_SIGSTKSZ)));
  stack_t own = {};
  own.ss_sp = state.stack.data();
  own.ss_size = state.stack.size();
  TANDEM_CHECK(::sigaltstack(&own, &state.saved_stack) == 0);
}

void MarkRequested() {
  if (state.requested.exchange(true)) return;
  const char byte = 1;
  [[maybe_unused]] const ssize_t count = ::write(state.pipe[1], &byte, 1);
}

void OnSignal(int number) {
  const int saved_errno = errno;
  int none = 0;
  if (!state.signal.compare_exchange_strong(none, number)) ::_exit(kSignalledExit + number);
  MarkRequested();
  errno = saved_errno;
}

void EndAtStop(const StopSignal& stop, std::optional<ExitCode> code,
               const std::atomic<bool>& loaded) {
  while (!loaded.load()) {
    if (!stop.WaitFor(std::chrono::milliseconds(20))) continue;
    log::Info("stopped while the model was being loaded", {{"signal", stop.signal()}});
    std::_Exit(ToInt(code.value_or(ExitCodeOfSignal(stop.signal()))));
  }
}

}  // namespace

StopSignal::StopSignal() {
  TANDEM_CHECK(!state.installed.exchange(true));
  state.signal = 0;
  state.requested = false;
  TANDEM_CHECK(::pipe2(state.pipe, O_CLOEXEC | O_NONBLOCK) == 0);
  UseOwnStack();
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  ::sigaction(SIGTERM, &action, &state.saved_term);
  ::sigaction(SIGINT, &action, &state.saved_int);
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, &state.saved_pipe);
}

StopSignal::~StopSignal() {
  ::sigaction(SIGTERM, &state.saved_term, nullptr);
  ::sigaction(SIGINT, &state.saved_int, nullptr);
  ::sigaction(SIGPIPE, &state.saved_pipe, nullptr);
  ::sigaltstack(&state.saved_stack, nullptr);
  ::close(state.pipe[0]);
  ::close(state.pipe[1]);
  state.installed = false;
}

bool StopSignal::Requested() const { return state.requested; }

int StopSignal::signal() const { return state.signal; }

bool StopSignal::WaitFor(std::chrono::milliseconds timeout) const {
  using std::chrono::milliseconds;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!state.requested) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left <= milliseconds::zero()) return false;
    pollfd readable = {.fd = state.pipe[0], .events = POLLIN, .revents = 0};
    // At most an hour per round, because poll takes an int.
    ::poll(&readable, 1, static_cast<int>(std::min(left, milliseconds(3'600'000)).count()));
  }
  return true;
}

void StopSignal::Request() { MarkRequested(); }

EndWhileLoading::EndWhileLoading(const StopSignal& stop)
    : thread_([this, &stop] { EndAtStop(stop, std::nullopt, loaded_); }) {}

EndWhileLoading::EndWhileLoading(const StopSignal& stop, ExitCode code)
    : thread_([this, &stop, code] { EndAtStop(stop, code, loaded_); }) {}

EndWhileLoading::~EndWhileLoading() {
  loaded_.store(true);
  thread_.join();
}

}  // namespace tandem
