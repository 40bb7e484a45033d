#include "trainer/ranks/rank_commands.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/comm/group.h"

namespace tandem::trainer {
namespace {

using SteadyClock = std::chrono::steady_clock;
using experience::v1::ScoredGroup;
using ranks::v1::Command;

constexpr absl::Duration kPoll = absl::Seconds(1);
constexpr char kStopAsked[] = "stop_asked";

std::string CommandName(int64_t number) { return absl::StrCat("commands/", number); }
std::string ReadersName(int64_t number) { return absl::StrCat("commands/", number, "/readers"); }

SteadyClock::time_point After(absl::Duration duration) {
  return SteadyClock::now() + absl::ToChronoNanoseconds(duration);
}

}  // namespace

absl::Status CommandSender::Send(const Command& command) {
  return store_.Set(CommandName(++num_sent_), command.SerializeAsString());
}

// The state that the polling thread and its owner share. The thread keeps it when it is left
// behind.
struct CommandPoller::Shared {
  explicit Shared(const RankLink& link)
      : store(link.store), rank(link.rank), num_readers(link.size - 1) {}

  void Poll();
  absl::StatusOr<std::string> Ask(int64_t number, bool say_stop) const;
  absl::Status CountRead(int64_t number) const;

  const comm::Store store;
  const int rank;
  const int num_readers;

  Mutex mu;
  CondVar changed;
  int64_t wanted ABSL_GUARDED_BY(mu) = 0;  // number of the command to ask for; 0: none
  bool stop_asked ABSL_GUARDED_BY(mu) = false;
  SteadyClock::time_point answered
      ABSL_GUARDED_BY(mu);  // when the store last did, or was first asked
  std::optional<absl::StatusOr<std::string>> found ABSL_GUARDED_BY(mu);  // `wanted`, or why not
  bool ending ABSL_GUARDED_BY(mu) = false;
  bool ended ABSL_GUARDED_BY(mu) = false;
};

void CommandPoller::Shared::Poll() {
  for (bool said = false;;) {
    int64_t number = 0;
    bool say_stop = false;
    {
      MutexLock lock(&mu);
      while (!ending && wanted == 0) changed.Wait(&mu);
      if (ending) {
        ended = true;
        changed.NotifyAll();
        return;
      }
      number = wanted;
      say_stop = stop_asked && !std::exchange(said, stop_asked);
    }
    absl::StatusOr<std::string> answer = Ask(number, say_stop);
    MutexLock lock(&mu);
    answered = SteadyClock::now();
    if (!absl::IsDeadlineExceeded(answer.status())) {
      wanted = 0;
      found = std::move(answer);
    }
    changed.NotifyAll();
  }
}

absl::StatusOr<std::string> CommandPoller::Shared::Ask(int64_t number, bool say_stop) const {
  if (say_stop) TANDEM_RETURN_IF_ERROR(store.Set(kStopAsked, absl::StrCat("rank ", rank)));
  TANDEM_ASSIGN_OR_RETURN(std::string bytes, store.Get(CommandName(number), kPoll));
  TANDEM_RETURN_IF_ERROR(CountRead(number));
  return bytes;
}

absl::Status CommandPoller::Shared::CountRead(int64_t number) const {
  TANDEM_ASSIGN_OR_RETURN(const int64_t count, store.Add(ReadersName(number), 1));
  if (count < num_readers) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(store.Delete(CommandName(number)));
  return store.Delete(ReadersName(number));
}

CommandPoller::CommandPoller(const RankLink& link)
    : patience_(link.patience),
      shared_(std::make_shared<Shared>(link)),
      thread_([shared = shared_] { shared->Poll(); }) {}

CommandPoller::~CommandPoller() {
  const auto until = After(2 * kPoll);
  bool ended = false;
  {
    MutexLock lock(&shared_->mu);
    shared_->ending = true;
    shared_->changed.NotifyAll();
    while (!shared_->ended && shared_->changed.WaitUntil(&shared_->mu, until)) {
    }
    ended = shared_->ended;
  }
  ended ? thread_.join() : thread_.detach();
}

absl::StatusOr<Command> CommandPoller::Next(const StopSignal& stop) {
  std::optional<SteadyClock::time_point> cancelled;  // when a stop is not waited for any more
  MutexLock lock(&shared_->mu);
  shared_->wanted = ++num_read_;
  shared_->answered = SteadyClock::now();
  shared_->changed.NotifyAll();
  while (!shared_->found.has_value()) {
    if (stop.Requested() && !cancelled.has_value()) {
      cancelled = After(patience_);
      shared_->stop_asked = true;
    }
    const auto now = SteadyClock::now();
    const auto silent = shared_->answered + absl::ToChronoNanoseconds(patience_);
    if (now >= silent) {
      return Unavailable("rank 0 did not answer for ", absl::FormatDuration(patience_),
                         ": stopped or cut off");
    }
    if (cancelled.has_value() && now >= *cancelled) {
      return Cancelled("stopped, and rank 0 did not say so");
    }
    // A signal wakes nobody here, so the flag is looked at every second.
    shared_->changed.WaitUntil(&shared_->mu, std::min(silent, After(kPoll)));
  }
  const absl::StatusOr<std::string> bytes = *std::exchange(shared_->found, std::nullopt);
  TANDEM_RETURN_IF_ERROR(bytes.status());
  Command command;
  if (!command.ParseFromString(*bytes)) {
    return Internal("command ", num_read_, " of rank 0 does not parse");
  }
  return command;
}

std::string EndedName(int rank) { return absl::StrCat("commands/ended/", rank); }

absl::StatusOr<bool> StopAsked(const RankLink& link) { return link.store.Has(kStopAsked); }

std::string SerializeGroups(const std::vector<ScoredGroup>& groups, GroupSizes* sizes) {
  std::string bytes;
  for (const ScoredGroup& group : groups) {
    const size_t before = bytes.size();
    bytes += group.SerializeAsString();
    sizes->Add(static_cast<int64_t>(bytes.size() - before));
  }
  return bytes;
}

absl::StatusOr<std::vector<ScoredGroup>> ReceiveGroups(comm::Collective& collective,
                                                       const GroupSizes& sizes) {
  const auto total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  std::vector<std::byte> bytes(static_cast<size_t>(total));
  TANDEM_RETURN_IF_ERROR(comm::BroadcastBytes(collective, bytes, 0));
  std::vector<ScoredGroup> groups;
  const std::byte* next = bytes.data();
  for (const int64_t size : sizes) {
    if (!groups.emplace_back().ParseFromArray(next, static_cast<int>(size))) {
      return Internal("groups from rank 0 do not parse");
    }
    next += size;
  }
  return groups;
}

}  // namespace tandem::trainer
