#include "trainer/environments/environment_worker.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "trainer/environments/environment_check.h"

namespace tandem::trainer {
namespace {

constexpr int kMostEnds = 2;  // of processes, while one episode was at work
constexpr double kNever = std::numeric_limits<double>::infinity();

}  // namespace

EnvironmentWorker::EnvironmentWorker(const EnvironmentOptions& options, std::string chat_template,
                                     Raised raised)
    : options_(options),
      hello_(EnvironmentHello(options, chat_template)),
      raised_(std::move(raised)),
      process_(EnvironmentProgram(options), &end_) {}

EnvironmentWorker::~EnvironmentWorker() {
  Cancel();
  std::optional<std::thread> thread;
  {
    MutexLock lock(&mu_);
    thread = std::exchange(thread_, std::nullopt);
  }
  if (thread.has_value()) thread->join();
}

void EnvironmentWorker::Open(int64_t episode, EpisodeStart start, Done opened) {
  {
    MutexLock lock(&mu_);
    OpenEpisode& begun = episodes_[episode];
    begun = OpenEpisode{};
    begun.start = std::move(start);
    begun.opened = std::move(opened);
    if (!thread_.has_value() && !cancelled_) thread_.emplace([this] { Run(); });
    changed_.NotifyAll();
  }
  process_.Wake();
}

void EnvironmentWorker::Step(int64_t episode, TurnText turn, Done done) {
  Ask(episode, std::move(turn), /*finishes=*/false, std::move(done));
}

void EnvironmentWorker::Finish(int64_t episode, int32_t turn, Done done) {
  Ask(episode, {.turn = turn}, /*finishes=*/true, std::move(done));
}

void EnvironmentWorker::Ask(int64_t episode, TurnText turn, bool finishes, Done done) {
  absl::Status failure;
  {
    MutexLock lock(&mu_);
    const auto found = episodes_.find(episode);
    if (cancelled_ || found == episodes_.end()) {
      failure = Cancelled(cancelled_ ? "the run ends" : "the episode is over");
    } else if (!found->second.failure.ok()) {
      failure = found->second.failure;
      episodes_.erase(found);
    } else {
      found->second.step = std::move(turn);
      found->second.finishes = finishes;
      found->second.done = std::move(done);
      changed_.NotifyAll();
    }
  }
  if (!failure.ok()) return done(failure);
  process_.Wake();
}

void EnvironmentWorker::Close(int64_t episode) {
  {
    MutexLock lock(&mu_);
    const auto found = episodes_.find(episode);
    if (found == episodes_.end()) return;
    if (found->second.state != OpenEpisode::State::kAway) closed_.push_back(episode);
    episodes_.erase(found);
    std::erase(suspects_, episode);
    changed_.NotifyAll();
  }
  process_.Wake();
}

void EnvironmentWorker::Cancel() {
  Calls calls;
  {
    MutexLock lock(&mu_);
    cancelled_ = true;
    FailAll(Cancelled("the run ends"), &calls);
    episodes_.clear();
    if (is_loading_) end_.Give();
    changed_.NotifyAll();
  }
  process_.Wake();
  for (const auto& call : calls) call();
}

void EnvironmentWorker::Fail(int64_t number, const absl::Status& why, Calls* calls) {
  const auto found = episodes_.find(number);
  OpenEpisode& episode = found->second;
  std::erase(suspects_, number);
  if (episode.state != OpenEpisode::State::kAway) closed_.push_back(number);
  episode.state = OpenEpisode::State::kAway;
  episode.failure = why;
  const bool is_told = episode.opened || episode.done;
  for (Done* const done : {&episode.opened, &episode.done}) {
    if (*done) calls->push_back([call = std::exchange(*done, {}), why] { call(why); });
  }
  if (is_told) episodes_.erase(found);
}

void EnvironmentWorker::FailAll(const absl::Status& why, Calls* calls) {
  std::vector<int64_t> numbers;
  for (const auto& [number, episode] : episodes_) numbers.push_back(number);
  for (const int64_t number : numbers) Fail(number, why, calls);
}

bool EnvironmentWorker::OpenEpisode::has_work() const {
  if (!failure.ok()) return false;
  return is_at_work() || step.has_value() || (state == State::kAway && history.empty());
}

absl::Status EnvironmentWorker::StartProcess() {
  if (process_.is_running()) return absl::OkStatus();
  unsent_.clear();
  {
    MutexLock lock(&mu_);
    if (cancelled_) return Cancelled("the run ends");
    is_loading_ = true;
  }
  std::string traceback;
  const absl::Status status = LoadEnvironment(process_, hello_, &traceback).status();
  {
    MutexLock lock(&mu_);
    is_loading_ = false;
  }
  if (!status.ok() && !absl::IsCancelled(status)) raised_(status, traceback);
  return status;
}

// Whether the thread goes on.
bool EnvironmentWorker::WaitForWork() {
  MutexLock lock(&mu_);
  const auto has_work = [](const auto& entry) { return entry.second.has_work(); };
  while (!cancelled_ && closed_.empty() && std::ranges::none_of(episodes_, has_work)) {
    changed_.Wait(&mu_);
  }
  return !cancelled_;
}

void EnvironmentWorker::SendTo(int64_t number, OpenEpisode& episode) {
  using State = OpenEpisode::State;
  if (!episode.failure.ok()) return;
  const double due = MonotonicSeconds() + options_.step_timeout_seconds;
  // One that was played before comes back when its next turn does.
  const bool is_needed = episode.step.has_value() || episode.history.empty();
  if (episode.state == State::kAway && is_needed) {
    unsent_ += OpenLine(number, episode.start, episode.history);
    episode.state = State::kOpening;
    // Each turn of the history may take as long as it did.
    episode.deadline =
        due + options_.step_timeout_seconds * static_cast<double>(episode.history.size());
  } else if (episode.state == State::kIdle && episode.step.has_value()) {
    unsent_ +=
        episode.finishes ? FinishLine(number, episode.step->turn) : StepLine(number, *episode.step);
    episode.state = State::kPlaying;
    episode.deadline = due;
  }
}

double EnvironmentWorker::Send() {
  MutexLock lock(&mu_);
  for (const int64_t number : closed_) unsent_ += CloseLine(number);
  closed_.clear();
  if (!suspects_.empty()) {
    SendTo(suspects_.front(), episodes_.at(suspects_.front()));
  } else {
    for (auto& [number, episode] : episodes_) SendTo(number, episode);
  }
  double due = kNever;
  for (const auto& [number, episode] : episodes_) {
    if (episode.is_at_work()) due = std::min(due, episode.deadline);
  }
  return due;
}

void EnvironmentWorker::TakeReply(EnvironmentReply reply, OpenEpisode& episode, Calls* calls) {
  const int64_t number = reply.episode;
  if (!reply.failure.ok()) return Fail(number, reply.failure, calls);
  episode.state = OpenEpisode::State::kIdle;
  const bool is_cleared = reply.turn > 0 || !episode.step.has_value();
  if (is_cleared) std::erase(suspects_, number);
  if (reply.turn == 0) {
    if (!episode.opened) return;
    calls->push_back([call = std::exchange(episode.opened, {}), reply] { call(reply); });
    return;
  }
  if (!episode.finishes) episode.history.push_back({episode.step->text, reply.messages_json});
  episode.step.reset();
  calls->push_back(
      [call = std::exchange(episode.done, {}), reply = std::move(reply)] { call(reply); });
}

void EnvironmentWorker::Take(const std::string& line) {
  auto reply = ReadEnvironmentReply(line);
  if (!reply.ok()) return Lose(reply.status());
  Calls calls;
  const absl::Status failure = reply->failure;
  const std::string traceback = reply->traceback;
  {
    MutexLock lock(&mu_);
    const auto found = episodes_.find(reply->episode);
    if (found != episodes_.end() && found->second.is_at_work()) {
      TakeReply(*std::move(reply), found->second, &calls);
    }
  }
  if (!failure.ok()) raised_(failure, traceback);
  for (const auto& call : calls) call();
}

absl::Status EnvironmentWorker::Limit(const absl::Status& why) const {
  if (absl::IsDeadlineExceeded(why)) {
    return DeadlineExceeded("the environment took more than ", options_.step_timeout_seconds,
                            " s (environment.step_timeout_seconds)");
  }
  if (absl::IsResourceExhausted(why)) {
    return ResourceExhausted("the environment took more than ", options_.memory_limit_mib,
                             " MiB (environment.memory_limit_mib)");
  }
  return why;
}

void EnvironmentWorker::Lose(const absl::Status& why) {
  process_.Stop();
  unsent_.clear();
  Calls calls;
  bool costs_an_episode = false;
  {
    MutexLock lock(&mu_);
    const double now = MonotonicSeconds();
    std::vector<int64_t> at_work, culprits;
    for (auto& [number, episode] : episodes_) {
      if (episode.is_at_work()) {
        at_work.push_back(number);
        if (absl::IsDeadlineExceeded(why) && episode.deadline <= now) culprits.push_back(number);
      }
      episode.state = OpenEpisode::State::kAway;
    }
    // Over a limit once is over it again.
    const bool is_limit = absl::IsDeadlineExceeded(why) || absl::IsResourceExhausted(why);
    for (const int64_t number : at_work) episodes_.at(number).num_ends += !is_limit;
    if (at_work.size() == 1) {
      const bool fails = episodes_.at(at_work[0]).num_ends >= kMostEnds || is_limit;
      if (fails) culprits = at_work;
    }
    log::Warning("a process that plays the environment is started over; what it played begins anew",
                 {{"reason", std::string(why.message())},
                  {"episodes", static_cast<int64_t>(episodes_.size())},
                  {"at_work", static_cast<int64_t>(at_work.size())}});
    for (const int64_t number : culprits) Fail(number, Limit(why), &calls);
    if (culprits.empty()) suspects_.assign(at_work.begin(), at_work.end());
    closed_.clear();
    costs_an_episode = !culprits.empty();
  }
  if (costs_an_episode) raised_(Limit(why), "");
  for (const auto& call : calls) call();
}

void EnvironmentWorker::Run() {
  BlockSigpipe();
  while (WaitForWork()) {
    if (const absl::Status started = StartProcess(); !started.ok()) {
      process_.Stop();
      Calls calls;
      {
        MutexLock lock(&mu_);
        FailAll(started, &calls);
        closed_.clear();
      }
      for (const auto& call : calls) call();
      continue;
    }
    const double due = Send();
    if (due == kNever && unsent_.empty()) continue;
    const absl::StatusOr<std::string> line = process_.NextLine(&unsent_, due);
    if (line.ok()) {
      Take(*line);
    } else if (!absl::IsAborted(line.status()) && !absl::IsCancelled(line.status())) {
      Lose(line.status());
    }
  }
  EndProcess();
}

// Lets the process close what is open. What it writes meanwhile is of no use any more.
void EnvironmentWorker::EndProcess() {
  if (!process_.is_running()) return;
  std::string unsent = std::exchange(unsent_, {}) + EndLine();
  const double deadline = MonotonicSeconds() + kCloseSeconds;
  absl::Status status;
  while (status.ok() || absl::IsAborted(status))
    status = process_.NextLine(&unsent, deadline).status();
  process_.Stop();
}

}  // namespace tandem::trainer
