#include "trainer/rewards/external/subprocess_reward.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

extern char** environ;

namespace tandem::trainer {
namespace {

constexpr size_t kMaxLineBytes = 1 << 20;
constexpr double kLookAtEndSeconds = 0.1;  // how often a wait looks whether the run ends
constexpr int kMostLineNesting = 16;
constexpr char kProgram[] = "reward program";

std::string Errno(const char* what) { return absl::StrCat(what, ": ", std::strerror(errno)); }

bool IsEnding(EndSign* end) { return end->WaitFor(std::chrono::milliseconds(0)); }

// The id of a line, if it is an object with one that is a whole number.
absl::StatusOr<int64_t> IdOf(const std::string& line, int64_t wanted) {
  using nlohmann::json;
  const json answer = NestsDeeperThan(line, kMostLineNesting)
                          ? json(json::value_t::discarded)
                          : json::parse(line, nullptr, /*allow_exceptions=*/false);
  const json id = answer.is_object() ? answer.value("id", json()) : json();
  if (id.is_number_integer()) return id.get<int64_t>();
  return InvalidArgument("reward program wrote '", line.substr(0, 120), "', want {\"id\":", wanted,
                         ",\"reward\":x}");
}

// A program has no signal blocked or ignored that the trainer's threads have.
void UseDefaultSignals(posix_spawnattr_t* attributes) {
  sigset_t signals;
  sigemptyset(&signals);
  posix_spawnattr_setsigmask(attributes, &signals);
  sigaddset(&signals, SIGPIPE);
  posix_spawnattr_setsigdefault(attributes, &signals);
  posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
}

}  // namespace

void BindOptions(OptionBinder& binder, SubprocessRewardOptions& options) {
  binder.TextList("command", &options.command,
                  "program and arguments of component subprocess: JSON lines on stdin and stdout");
  binder.Number("timeout_seconds", &options.timeout_seconds, {.min = 0, .exclusive_min = true}, "s",
                "longest wait for one answer; then the program is restarted");
  binder.Integer("workers", &options.pool.workers, {.min = 1, .max = 1024}, "programs",
                 "that run beside each other, started when there is work for them");
  binder.Integer("batch_size", &options.pool.batch_size, {.min = 1, .max = 4096}, "completions",
                 "lines that a program is given before it has answered the first");
  binder.Flag("cached", &options.cached,
              "keep answers in reward.cache: for programs that give the same completion the same "
              "reward every time");
}

SubprocessReward::SubprocessReward(const SubprocessRewardOptions& options, EndSign* end)
    : options_(options), end_(end) {}

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
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  UseDefaultSignals(&attributes);
  std::vector<char*> arguments;
  for (const std::string& word : options_.command) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  arguments.push_back(nullptr);
  const int error =
      posix_spawnp(&pid_, arguments[0], &actions, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  close(in[0]);
  close(out[1]);
  to_child_ = in[1];
  from_child_ = out[0];
  if (error != 0) {
    pid_ = -1;
    Stop();
    return Unavailable("cannot start reward program '", options_.command[0],
                       "': ", std::string(strerror(error)));
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

// Returns whether it can be written to.
absl::StatusOr<bool> SubprocessReward::WaitReady(bool writes, double deadline) {
  for (;;) {
    if (IsEnding(end_)) return Cancelled("the run ends while the reward program works");
    const double left = deadline - MonotonicSeconds();
    if (left <= 0) {
      return DeadlineExceeded("reward program gave no answer within ", options_.timeout_seconds,
                              " s (reward.subprocess)");
    }
    pollfd ends[2] = {{.fd = from_child_, .events = POLLIN, .revents = 0},
                      {.fd = to_child_, .events = POLLOUT, .revents = 0}};
    const double wait = std::min(left, kLookAtEndSeconds);
    const int ready = poll(ends, writes ? 2 : 1, static_cast<int>(std::ceil(wait * 1000)));
    if (ready > 0) return writes && ends[1].revents != 0;
    if (ready < 0 && errno != EINTR) return Unavailable(Errno("poll"));
  }
}

absl::Status SubprocessReward::Write(std::string* lines) {
  const ssize_t n = write(to_child_, lines->data(), lines->size());
  if (n > 0) lines->erase(0, static_cast<size_t>(n));
  if (n >= 0 || errno == EAGAIN || errno == EINTR) return absl::OkStatus();
  return Unavailable(errno == EPIPE ? std::string("reward program ended")
                                    : Errno("reward program does not read"));
}

absl::Status SubprocessReward::Read() {
  char buffer[4096];
  const ssize_t n = read(from_child_, buffer, sizeof(buffer));
  if (n == 0) return Unavailable("reward program ended");
  if (n > 0) unread_.append(buffer, static_cast<size_t>(n));
  if (n >= 0 || errno == EAGAIN || errno == EINTR) return absl::OkStatus();
  return Unavailable(Errno("reading from the reward program"));
}

absl::StatusOr<bool> SubprocessReward::TakeLines(std::span<const RewardQuestion> questions,
                                                 Open* open, std::vector<RewardAnswer>* answers) {
  bool any = false;
  for (size_t end; (end = unread_.find('\n')) != std::string::npos; any = true) {
    const std::string line = unread_.substr(0, end);
    unread_.erase(0, end + 1);
    const int64_t wanted = open->empty() ? next_id_ : open->begin()->first;
    TANDEM_ASSIGN_OR_RETURN(const int64_t id, IdOf(line, wanted));
    const auto question = open->find(id);
    if (question == open->end()) {
      return InvalidArgument("reward program wrote '", line.substr(0, 120),
                             "', want {\"id\":", wanted, ",\"reward\":x}");
    }
    const size_t index = question->second;
    (*answers)[index] = ParseAnswer(line, kProgram, questions[index].input().text);
    open->erase(question);
  }
  if (unread_.size() > kMaxLineBytes) {
    return InvalidArgument("reward program wrote a line over 1 MiB");
  }
  return any;
}

// Reads while it writes: a program that waits until its answers are read would else wait for ever.
absl::Status SubprocessReward::Exchange(std::string lines,
                                        std::span<const RewardQuestion> questions, Open* open,
                                        std::vector<RewardAnswer>* answers) {
  double deadline = MonotonicSeconds() + options_.timeout_seconds;
  while (!open->empty()) {
    TANDEM_ASSIGN_OR_RETURN(const bool can_write, WaitReady(!lines.empty(), deadline));
    if (can_write) TANDEM_RETURN_IF_ERROR(Write(&lines));
    TANDEM_RETURN_IF_ERROR(can_write && !lines.empty() ? absl::OkStatus() : Read());
    TANDEM_ASSIGN_OR_RETURN(const bool any, TakeLines(questions, open, answers));
    if (any) deadline = MonotonicSeconds() + options_.timeout_seconds;
  }
  return absl::OkStatus();
}

absl::Status SubprocessReward::AskTogether(std::span<const RewardQuestion> questions,
                                           const std::vector<size_t>& indices,
                                           std::vector<RewardAnswer>* answers) {
  if (pid_ < 0) TANDEM_RETURN_IF_ERROR(Start());
  Open open;
  std::string lines;
  for (const size_t index : indices) {
    const int64_t id = next_id_++;
    open[id] = index;
    absl::StrAppend(&lines, QuestionJson(questions[index].input(), id), "\n");
  }
  const absl::Status exchanged = Exchange(std::move(lines), questions, &open, answers);
  for (const auto& [id, index] : open) (*answers)[index] = exchanged;
  return exchanged;
}

std::vector<RewardAnswer> SubprocessReward::Ask(std::span<const RewardQuestion> questions) {
  std::vector<RewardAnswer> answers(questions.size(), absl::UnknownError("not asked"));
  std::vector<size_t> all(questions.size());
  std::iota(all.begin(), all.end(), size_t{0});
  absl::Status whole = AskTogether(questions, all, &answers);
  if (pid_ < 0) answers.assign(questions.size(), whole);
  // After a failure the stream may be out of step with the requests: only a new process is safe.
  // Likewise where an answer cannot be: the program that gave it may be broken.
  const auto is_final = [](const RewardAnswer& answer) {
    return answer.ok() || answer.status().code() == absl::StatusCode::kAborted ||
           answer.status().code() == absl::StatusCode::kCancelled;
  };
  if (!whole.ok() || !std::ranges::all_of(answers, is_final)) Stop();
  for (size_t i = 0; i < answers.size(); ++i) {
    if (is_final(answers[i])) continue;
    whole = AskTogether(questions, {i}, &answers);
    if (!whole.ok()) answers[i] = whole;
    if (!is_final(answers[i])) Stop();
  }
  return answers;
}

}  // namespace tandem::trainer
