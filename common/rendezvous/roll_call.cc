#include "common/rendezvous/roll_call.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/rendezvous/rendezvous.h"

namespace tandem::comm {
namespace {

// Six beats, because some may be late.
constexpr absl::Duration kBetweenReadings = absl::Seconds(3);
constexpr absl::Duration kLinger = absl::Seconds(5);
constexpr int kMostFailures = 3;
constexpr absl::Duration kPatience = absl::Seconds(12);

std::string NameOf(int rank) { return absl::StrCat("member/", rank); }

std::string Text(int64_t beat, int64_t sequence, bool inside) {
  return absl::StrCat(beat, " ", sequence, " ", inside ? 1 : 0);
}

MemberState Parse(const std::string& text) {
  const std::vector<std::string> words = absl::StrSplit(text, ' ');
  MemberState state;
  int inside = 0;
  state.known = words.size() == 3 && absl::SimpleAtoi(words[0], &state.beat) &&
                absl::SimpleAtoi(words[1], &state.sequence) && absl::SimpleAtoi(words[2], &inside);
  state.inside = inside != 0;
  return state;
}

std::string LastSeen(const MemberState& state) {
  if (!state.known) return "it never was in one";
  if (state.inside) return absl::StrCat("it was last in collective ", state.sequence);
  return absl::StrCat("it was last seen after collective ", state.sequence);
}

absl::StatusOr<std::vector<MemberState>> ReadAll(const Store& store, size_t count) {
  std::vector<MemberState> states(count);
  for (size_t rank = 0; rank < count; ++rank) {
    const std::string name = NameOf(static_cast<int>(rank));
    TANDEM_ASSIGN_OR_RETURN(const bool has, store.Has(name));
    if (!has) continue;
    TANDEM_ASSIGN_OR_RETURN(const std::string text, store.Get(name, kBeatTime));
    states[rank] = Parse(text);
  }
  return states;
}

}  // namespace

std::string FindCulprits(const std::vector<std::string>& members,
                         const std::vector<MemberState>& first,
                         const std::vector<MemberState>& second, int self, int64_t sequence) {
  std::vector<std::string> silent, lagging;
  for (size_t rank = 0; rank < members.size(); ++rank) {
    if (static_cast<int>(rank) == self) continue;
    const MemberState& state = second[rank];
    const std::string who = absl::StrCat("rank ", rank, " (", members[rank], ")");
    if (!state.known || state.beat == first[rank].beat) {
      silent.push_back(
          absl::StrCat(who, " is silent: dead, stopped or cut off; ", LastSeen(state)));
    } else if (state.sequence < sequence) {
      lagging.push_back(absl::StrCat(
          who, state.inside ? absl::StrCat(" lags: it is in collective ", state.sequence)
                            : absl::StrCat(" lags: it is between collectives ", state.sequence,
                                           " and ", state.sequence + 1)));
    }
  }
  const std::vector<std::string>& culprits = silent.empty() ? lagging : silent;
  return absl::StrJoin(culprits, "; ");
}

std::string NameCulprits(const std::vector<std::string>& members,
                         const std::vector<MemberState>& first,
                         const std::vector<MemberState>& second, int self, int64_t sequence) {
  const std::string culprits = FindCulprits(members, first, second, self, sequence);
  return culprits.empty() ? "all members are alive and in it, or past it" : culprits;
}

struct RollCall::State {
  Store store;
  std::vector<std::string> members;
  int self;
  LagWarning lag;
  std::atomic<int64_t> sequence = 0;
  std::atomic<bool> inside = false;

  std::mutex mutex;
  std::condition_variable changed;
  bool stop = false, stopped = false;

  // The collective that this member is inside, as the heartbeat thread has seen it.
  struct Watched {
    int64_t sequence = 0;
    absl::Time since, read_at;
    absl::Duration next;             // waiting time before the next warning
    std::vector<MemberState> first;  // first reading; empty: not made yet
  };

  // Called once per beat.
  void WarnOfLag(Watched& watched) const {
    if (lag.warn == nullptr || !inside) {
      watched.sequence = 0;
      return;
    }
    const absl::Time now = SteadyNow();
    if (watched.sequence != sequence) {
      watched = {
          .sequence = sequence, .since = now, .read_at = now, .next = lag.after, .first = {}};
    }
    if (now - watched.since < watched.next) return;
    if (!watched.first.empty() && now - watched.read_at < kBetweenReadings) return;
    const auto states = ReadAll(store, members.size());
    if (!states.ok()) return;
    if (watched.first.empty()) {
      watched.first = *states;
      watched.read_at = now;
      return;
    }
    const std::string culprits =
        FindCulprits(members, watched.first, *states, self, watched.sequence);
    if (!culprits.empty()) {
      lag.warn(absl::StrCat("in collective ", watched.sequence, " for ",
                            absl::ToInt64Seconds(now - watched.since), " s: ", culprits));
    }
    watched.first.clear();
    watched.next *= 2;
  }

  void Write() {
    Watched watched;
    int failures = 0;
    std::unique_lock lock(mutex);
    for (int64_t beat = 1; !stop; ++beat) {
      lock.unlock();
      // A store that is gone does not come back. The members that use it find out by themselves.
      const bool written = store.Set(NameOf(self), Text(beat, sequence, inside)).ok();
      failures = written ? 0 : failures + 1;
      WarnOfLag(watched);
      lock.lock();
      if (failures == kMostFailures) break;
      changed.wait_for(lock, absl::ToChronoMilliseconds(kBeatTime), [this] { return stop; });
    }
    stopped = true;
    changed.notify_all();
  }

  // Two readings, kBetweenReadings apart, separate silent members from live ones. All members of a
  // failed collective get here, but not at the same moment: one whose call failed early may already
  // have ended when a late one reads, and would then be blamed for its silence. So the verdict is a
  // key that is set once, and whoever comes later adopts it.
  std::string Ask(int64_t at) const {
    const std::string verdict = absl::StrCat("verdict/", at);
    const auto first = ReadAll(store, members.size());
    if (!first.ok()) return std::string(first.status().message());
    // A member that asked earlier may have decided by now.
    store.Get(verdict, kBetweenReadings).status().IgnoreError();
    const auto second = ReadAll(store, members.size());
    if (!second.ok()) return std::string(second.status().message());
    const std::string found = NameCulprits(members, *first, *second, self, at);
    const auto settled = store.SetOnce(verdict, found);
    WaitUntilHeard(at, *first, *second);
    return settled.ok() ? *settled : found;
  }

  // Waits until all live members have read the verdict, because the store may end with this
  // process.
  void WaitUntilHeard(int64_t at, const std::vector<MemberState>& first,
                      const std::vector<MemberState>& second) const {
    const auto name = [&](size_t rank) { return absl::StrCat("heard/", at, "/", rank); };
    store.Set(name(static_cast<size_t>(self)), "").IgnoreError();
    const absl::Time end = SteadyNow() + kLinger;
    for (size_t rank = 0; rank < members.size(); ++rank) {
      if (second[rank].beat == first[rank].beat) continue;
      const auto left = std::max(end - SteadyNow(), absl::ZeroDuration());
      store.Get(name(rank), left).status().IgnoreError();
    }
  }
};

RollCall::RollCall(Store store, std::vector<std::string> members, int self, LagWarning lag)
    : state_(std::make_shared<State>(std::move(store), std::move(members), self, std::move(lag))) {
  std::thread([state = state_] { state->Write(); }).detach();
}

RollCall::~RollCall() {
  std::unique_lock lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, absl::ToChronoMilliseconds(kBeatTime),
                           [this] { return state_->stopped; });
}

void RollCall::Enter(int64_t sequence) {
  state_->sequence = sequence;
  state_->inside = true;
}

void RollCall::Leave() { state_->inside = false; }

std::string RollCall::Ask(int64_t sequence) const {
  auto asked = std::make_shared<std::promise<std::string>>();
  std::future<std::string> answer = asked->get_future();
  std::thread([state = state_, asked, sequence] {
    asked->set_value(state->Ask(sequence));
  }).detach();
  if (answer.wait_for(absl::ToChronoMilliseconds(kPatience)) == std::future_status::ready) {
    return answer.get();
  }
  return absl::StrCat("rank 0 (", state_->members.front(),
                      "), which holds the store, does not answer: stopped or cut off");
}

}  // namespace tandem::comm
