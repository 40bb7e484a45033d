#include "common/rendezvous/rendezvous.h"

#include <unistd.h>

#include <algorithm>
#include <random>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/rendezvous/loopback.h"

namespace tandem::comm {
namespace {

constexpr absl::Duration kFirstWarning = absl::Seconds(5);
constexpr absl::Duration kPoll = absl::Milliseconds(20);
constexpr absl::Duration kRetry = absl::Milliseconds(500);

// The name of a launch. The restart count is last, so that a later restart of the same launch can
// be recognised.
struct LaunchName {
  std::string job, id;
  int restart = 0;

  std::string Text() const { return absl::StrCat(job, "/", id, "/", restart); }
  // True if `other` is a later restart of the same launch.
  bool IsBefore(const std::string& other) const {
    const size_t slash = other.rfind('/');
    int later = 0;
    return slash != std::string::npos && other.substr(0, slash) == absl::StrCat(job, "/", id) &&
           absl::SimpleAtoi(other.substr(slash + 1), &later) && later > restart;
  }
};

// Tracks the deadline, and warns about what is being waited for after 5 s, 10 s, 20 s, ...
class Patience {
 public:
  explicit Patience(const RendezvousOptions& options) : options_(options) {}

  absl::Duration left() const { return start_ + options_.deadline - SteadyNow(); }
  bool over() const { return left() <= absl::ZeroDuration(); }

  void Waiting(const std::function<std::string()>& what) {
    if (SteadyNow() - start_ < next_) return;
    next_ *= 2;
    options_.warn(absl::StrCat("waiting for ", what(), " since ",
                               absl::ToInt64Seconds(SteadyNow() - start_), " s, for up to ",
                               absl::ToInt64Seconds(options_.deadline), " s"));
  }

 private:
  const RendezvousOptions& options_;
  const absl::Time start_ = SteadyNow();
  absl::Duration next_ = kFirstWarning;
};

// The store is one TCP server, at rank 0. The key "launch" names the launch it serves. All keys
// below have that name as a prefix, so two launches never see each other's. "here/<rank>" is set
// once by each rank to a mark of its own, which makes a second process of the same rank detectable.
// "go" is set once by rank 0: to an empty text when all ranks came, else to the reason. Every rank
// returns what "go" says, so either all ranks meet or all fail with the same message. Rank 0 waits
// for "heard/<rank>" before it leaves with a failure, because the store ends with it.
class Meeting {
 public:
  explicit Meeting(const RendezvousOptions& options)
      : options_(options),
        self_(options.self),
        launch_{options.job, options.self.launch_id, options.self.restart},
        patience_(options) {}

  absl::StatusOr<Rendezvous> Run() {
    TANDEM_ASSIGN_OR_RETURN(const Store root, self_.rank == 0 ? Host() : Join());
    const Store store = root.Under(launch_.Text());
    const absl::Status waited = self_.rank == 0 ? WaitForAll(store) : WaitForGo(store);
    TANDEM_RETURN_IF_ERROR(waited);
    Rendezvous met{.store = store};
    for (int rank = 0; rank < self_.world_size; ++rank) {
      TANDEM_ASSIGN_OR_RETURN(const std::string mark,
                              store.Get(absl::StrCat("here/", rank), absl::Seconds(10)));
      met.members.push_back(NameIn(mark));
    }
    return met;
  }

 private:
  // The value by which a process announces itself. It includes a random number, because in a
  // container a restarted process has the host name and process id of the one before.
  static std::string Mark() {
    return absl::StrCat(SelfName(), "#", absl::Hex(std::random_device()()));
  }
  static std::string NameIn(const std::string& mark) { return mark.substr(0, mark.find('#')); }

  std::string Place() const { return absl::StrCat(self_.master_host, ":", self_.master_port); }

  absl::StatusOr<Store> Host() {
    const Reach reach = IsLoopback(self_.master_host + ":0") ? Reach::kMachine : Reach::kNetwork;
    TANDEM_ASSIGN_OR_RETURN(Store store, Store::Host(self_.master_port, reach));
    TANDEM_RETURN_IF_ERROR(store.Set("launch", launch_.Text()));
    TANDEM_RETURN_IF_ERROR(Enter(store.Under(launch_.Text())));
    return store;
  }

  // Connects and announces itself, again and again until the deadline. The address may still belong
  // to an earlier rank 0 that is shutting down, even one of this launch if the launcher restarts
  // ranks one by one.
  absl::StatusOr<Store> Join() {
    std::string problem;
    bool is_anothers = false;
    for (bool first = true; first || !patience_.over(); first = false) {
      auto store = Store::Connect(self_.master_host, self_.master_port,
                                  std::clamp(patience_.left(), kPoll, absl::Seconds(5)));
      is_anothers = false;
      if (!store.ok()) {
        problem = "nobody listens there";
      } else if (const auto launch = store->Get("launch", absl::Seconds(5)); !launch.ok()) {
        problem = std::string(launch.status().message());
      } else if (*launch == launch_.Text()) {
        const absl::Status entered = Enter(store->Under(launch_.Text()));
        if (entered.ok()) return store;
        problem = std::string(entered.message());
        is_anothers = absl::IsFailedPrecondition(entered);
      } else {
        is_anothers = true;
        problem = absl::StrCat("it belongs to launch ", *launch, ", this is ", launch_.Text());
        if (launch_.IsBefore(*launch)) {
          return FailedPrecondition("rank ", self_.rank,
                                    " is a process of an older launch: rank 0 at ", Place(),
                                    " is of ", *launch, ", this is ", launch_.Text());
        }
      }
      patience_.Waiting([&] { return absl::StrCat("rank 0 at ", Place(), " (", problem, ")"); });
      absl::SleepFor(std::clamp(patience_.left(), absl::ZeroDuration(), kRetry));
    }
    if (is_anothers) {
      return FailedPrecondition("rank 0 at ", Place(), ": ", problem,
                                "; two runs on one port, or an older run that does not end");
    }
    return DeadlineExceeded("rank 0 did not come to ", Place(), " within ",
                            absl::FormatDuration(options_.deadline), ": ", problem,
                            "; is it running, and can this host reach that one?");
  }

  absl::Status Enter(const Store& store) const {
    TANDEM_ASSIGN_OR_RETURN(const std::string here,
                            store.SetOnce(absl::StrCat("here/", self_.rank), mark_));
    if (here == mark_) return absl::OkStatus();
    return FailedPrecondition("rank ", self_.rank, " of this launch is ", NameIn(here),
                              " already; this process is ", SelfName(),
                              ", started again: it joins when all ranks are");
  }

  absl::StatusOr<std::vector<int>> Missing(const Store& store) const {
    std::vector<int> missing;
    for (int rank = 0; rank < self_.world_size; ++rank) {
      TANDEM_ASSIGN_OR_RETURN(const bool here, store.Has(absl::StrCat("here/", rank)));
      if (!here) missing.push_back(rank);
    }
    return missing;
  }

  // Rank 0: waits for the others, and decides for all.
  absl::Status WaitForAll(const Store& store) {
    for (;;) {
      TANDEM_ASSIGN_OR_RETURN(const std::vector<int> missing, Missing(store));
      if (missing.empty()) return store.Set("go", "");
      if (patience_.over()) {
        const std::string problem =
            absl::StrCat(RanksText(missing), " of ", self_.world_size, " did not come to ", Place(),
                         " within ", absl::FormatDuration(options_.deadline));
        TANDEM_RETURN_IF_ERROR(Tell(store, problem));
        return DeadlineExceeded(problem);
      }
      patience_.Waiting([&] { return absl::StrCat(RanksText(missing), " of ", self_.world_size); });
      absl::SleepFor(kPoll);
    }
  }

  // Waits until the ranks that came have read the decision, or are gone.
  absl::Status Tell(const Store& store, const std::string& problem) const {
    TANDEM_RETURN_IF_ERROR(store.Set("go", problem));
    TANDEM_ASSIGN_OR_RETURN(const std::vector<int> missing, Missing(store));
    for (int rank = 1; rank < self_.world_size; ++rank) {
      if (std::ranges::find(missing, rank) != missing.end()) continue;
      store.Get(absl::StrCat("heard/", rank), absl::Seconds(2)).status().IgnoreError();
    }
    return absl::OkStatus();
  }

  // The other ranks. They came later than rank 0, so they wait a little longer than its deadline.
  absl::Status WaitForGo(const Store& store) {
    for (;;) {
      const auto go = store.Get("go", kFirstWarning);
      if (go.ok() && go->empty()) return absl::OkStatus();
      if (go.ok()) {
        store.Set(absl::StrCat("heard/", self_.rank), "").IgnoreError();
        return DeadlineExceeded(*go);
      }
      if (!absl::IsDeadlineExceeded(go.status())) return go.status();
      TANDEM_ASSIGN_OR_RETURN(const std::vector<int> missing, Missing(store));
      if (patience_.left() < -2 * kFirstWarning) {
        return DeadlineExceeded(
            missing.empty() ? "rank 0 did not go on though all ranks came"
                            : absl::StrCat(RanksText(missing), " did not come to ", Place()));
      }
      patience_.Waiting([&] { return absl::StrCat(RanksText(missing), " of ", self_.world_size); });
    }
  }

  const RendezvousOptions& options_;
  const RankEnvironment& self_;
  const LaunchName launch_;
  const std::string mark_ = Mark();
  Patience patience_;
};

}  // namespace

std::string SelfName() {
  char host[256] = "localhost";
  gethostname(host, sizeof(host) - 1);
  return absl::StrCat(host, ":", getpid());
}

absl::StatusOr<Rendezvous> Meet(const RendezvousOptions& options) { return Meeting(options).Run(); }

std::string RanksText(const std::vector<int>& ranks) {
  constexpr size_t kMostNamed = 8;
  if (ranks.empty()) return "no rank";
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const size_t named = ranks.size() > kMostNamed + 1 ? kMostNamed : ranks.size();
  for (size_t i = 0; i < named; ++i) {
    const bool last = i + 1 == ranks.size();
    absl::StrAppend(&text, i == 0 ? "" : last ? " and " : ", ", ranks[i]);
  }
  if (named < ranks.size()) absl::StrAppend(&text, " and ", ranks.size() - named, " more");
  return text;
}

}  // namespace tandem::comm
