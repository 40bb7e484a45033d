#include "trainer/rewards/subprocess_reward.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

extern char** environ;

namespace tandem::trainer {
namespace {

constexpr size_t kMaxLineBytes = 1 << 20;

std::string Errno(const char* what) { return absl::StrCat(what, ": ", std::strerror(errno)); }

// Waits until `fd` is ready for `events`.
absl::Status WaitReady(int fd, short events, double deadline, double timeout_seconds) {
  for (;;) {
    const double left = deadline - MonotonicSeconds();
    if (left <= 0) {
      return DeadlineExceeded("reward program gave no answer within ", timeout_seconds,
                              " s (reward.subprocess)");
    }
    pollfd poll_fd = {.fd = fd, .events = events, .revents = 0};
    const int ready = poll(&poll_fd, 1, static_cast<int>(std::ceil(std::min(left, 60.0) * 1000)));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return Unavailable(Errno("poll"));
  }
}

absl::StatusOr<double> ParseAnswer(const std::string& line, int64_t id) {
  const nlohmann::json answer = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  const std::string shown = line.substr(0, 120);
  if (!answer.is_object() || !answer.contains("id") || answer["id"] != id) {
    return InvalidArgument("reward program wrote '", shown, "', want {\"id\":", id,
                           ",\"reward\":x}");
  }
  if (answer.contains("error")) {
    return InvalidArgument("reward program reports: ", answer["error"].dump().substr(0, 200));
  }
  if (!answer.contains("reward") || !answer["reward"].is_number() ||
      !std::isfinite(answer["reward"].get<double>())) {
    return InvalidArgument("reward program wrote '", shown, "': \"reward\" is not a finite number");
  }
  return answer["reward"].get<double>();
}

}  // namespace

void BindOptions(OptionBinder& binder, SubprocessRewardOptions& options) {
  binder.TextList("command", &options.command,
                  "program and arguments of component subprocess: JSON lines on stdin and stdout");
  binder.Number("timeout_seconds", &options.timeout_seconds, {.min = 0, .exclusive_min = true}, "s",
                "longest wait for one answer; then the program is restarted");
}

SubprocessReward::SubprocessReward(const SubprocessRewardOptions& options) : options_(options) {}

SubprocessReward::~SubprocessReward() { Stop(); }

absl::Status SubprocessReward::Start() {
  int in[2], out[2];
  if (pipe2(in, O_CLOEXEC) != 0) return Unavailable(Errno("pipe"));
  if (pipe2(out, O_CLOEXEC) != 0) {
    const std::string message = Errno("pipe");
    close(in[0]);
    close(in[1]);
    return Unavailable(message);
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  std::vector<char*> arguments;
  for (const std::string& word : options_.command) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  arguments.push_back(nullptr);
  const int error = posix_spawnp(&pid_, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(in[0]);
  close(out[1]);
  to_child_ = in[1];
  from_child_ = out[0];
  if (error != 0) {
    pid_ = -1;
    Stop();
    return Unavailable("cannot start reward program '", options_.command[0],
                       "': ", strerror(error));
  }
  fcntl(to_child_, F_SETFL, O_NONBLOCK);
  fcntl(from_child_, F_SETFL, O_NONBLOCK);
  return absl::OkStatus();
}

void SubprocessReward::Stop() {
  if (to_child_ >= 0) close(std::exchange(to_child_, -1));
  if (from_child_ >= 0) close(std::exchange(from_child_, -1));
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  pid_ = -1;
  unread_.clear();
}

absl::Status SubprocessReward::WriteLine(const std::string& line, double deadline) {
  size_t written = 0;
  while (written < line.size()) {
    TANDEM_RETURN_IF_ERROR(WaitReady(to_child_, POLLOUT, deadline, options_.timeout_seconds));
    const ssize_t n = write(to_child_, line.data() + written, line.size() - written);
    if (n > 0) written += static_cast<size_t>(n);
    if (n < 0 && errno != EAGAIN && errno != EINTR) {
      return Unavailable(Errno("reward program does not read"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> SubprocessReward::ReadLine(double deadline) {
  for (;;) {
    if (const size_t end = unread_.find('\n'); end != std::string::npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    if (unread_.size() > kMaxLineBytes) {
      return InvalidArgument("reward program wrote a line over 1 MiB");
    }
    TANDEM_RETURN_IF_ERROR(WaitReady(from_child_, POLLIN, deadline, options_.timeout_seconds));
    char buffer[4096];
    const ssize_t n = read(from_child_, buffer, sizeof(buffer));
    if (n == 0) return Unavailable("reward program ended");
    if (n > 0) unread_.append(buffer, static_cast<size_t>(n));
    if (n < 0 && errno != EAGAIN && errno != EINTR) {
      return Unavailable(Errno("reading from the reward program"));
    }
  }
}

absl::StatusOr<double> SubprocessReward::Ask(const std::string& request_json) {
  if (pid_ < 0) TANDEM_RETURN_IF_ERROR(Start());
  const int64_t id = next_id_++;
  const double deadline = MonotonicSeconds() + options_.timeout_seconds;
  const std::string line =
      absl::StrCat("{\"id\":", id, request_json == "{}" ? "" : ",", request_json.substr(1), "\n");
  TANDEM_RETURN_IF_ERROR(WriteLine(line, deadline));
  TANDEM_ASSIGN_OR_RETURN(const std::string answer, ReadLine(deadline));
  return ParseAnswer(answer, id);
}

absl::StatusOr<double> SubprocessReward::Score(const std::string& request_json) {
  absl::StatusOr<double> reward = Ask(request_json);
  if (reward.ok()) return reward;
  // After a failure the stream may be out of step with the requests: only a new process is safe.
  Stop();
  reward = Ask(request_json);
  if (!reward.ok()) Stop();
  return reward;
}

}  // namespace tandem::trainer
