#include "trainer/ranks/remote_learner.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/run_error.h"
#include "common/base/status_macros.h"
#include "common/comm/group.h"
#include "proto/experience.pb.h"

namespace tandem::trainer {
namespace {

using experience::v1::ScoredGroup;

using SteadyClock = std::chrono::steady_clock;

constexpr absl::Duration kAsk = absl::Seconds(1);
constexpr std::chrono::seconds kLongestFarewell{10};
constexpr char kStopAsked[] = "stop_asked";

std::string NameOf(int64_t number) { return absl::StrCat("order/", number); }
std::string EndOf(int rank) { return absl::StrCat("order/ended/", rank); }

std::span<std::byte> BytesOf(std::string& text) {
  return std::as_writable_bytes(std::span(text.data(), text.size()));
}

// Groups one after the other, each behind its length in eight bytes.
std::string Serialize(const std::vector<ScoredGroup>& groups) {
  std::string bytes;
  for (const ScoredGroup& group : groups) {
    const std::string one = group.SerializeAsString();
    const auto length = static_cast<uint64_t>(one.size());
    bytes.append(reinterpret_cast<const char*>(&length), sizeof(length));
    bytes += one;
  }
  return bytes;
}

absl::StatusOr<std::vector<ScoredGroup>> Parse(const std::string& bytes) {
  std::vector<ScoredGroup> groups;
  for (size_t at = 0; at < bytes.size();) {
    uint64_t length = 0;
    bytes.copy(reinterpret_cast<char*>(&length), sizeof(length), at);
    at += sizeof(length);
    if (!groups.emplace_back().ParseFromArray(bytes.data() + at, static_cast<int>(length))) {
      return absl::InternalError("groups from rank 0 do not parse");
    }
    at += length;
  }
  return groups;
}

// From rank 0 to all, through a copy: it may be a live weight.
absl::Status SendTensor(comm::Collective& group, const HostTensor& tensor) {
  std::vector<std::byte> bytes(tensor.bytes.begin(), tensor.bytes.end());
  return comm::BroadcastBytes(group, bytes, 0);
}

// The other ranks. Their own tensors say which there are: one model, one order.
absl::StatusOr<HostTensor> ReceiveTensor(comm::Collective& group, const TensorSpec& spec) {
  auto bytes = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(spec.num_bytes()));
  TANDEM_RETURN_IF_ERROR(comm::BroadcastBytes(group, *bytes, 0));
  return HostTensor{spec, *bytes, bytes};
}

// `state` to all, one tensor at a time in the order of `wanted`.
absl::Status SendTensors(comm::Collective& group, const std::vector<TensorSource>& state,
                         const std::vector<TensorSource>& wanted) {
  std::map<std::string, const TensorSource*> by_name;
  for (const TensorSource& source : state) by_name[source.spec.name] = &source;
  for (const TensorSource& source : wanted) {
    TANDEM_ASSIGN_OR_RETURN(const HostTensor tensor, by_name.at(source.spec.name)->read());
    TANDEM_RETURN_IF_ERROR(SendTensor(group, tensor));
  }
  return absl::OkStatus();
}

// Sets of tensors that the ranks hold parts of have numbers, the same on all: kLive is Save's
// masters and moments, later ones are made by orders to cast and to keep.
constexpr int64_t kLive = 0;

// Sets that nobody on rank 0 can read any more: the others are told with the next order.
class Dropped {
 public:
  void Add(int64_t set) {
    MutexLock lock(&mu_);
    sets_.push_back(set);
  }
  std::vector<int64_t> Take() {
    MutexLock lock(&mu_);
    return std::exchange(sets_, {});
  }

 private:
  Mutex mu_;
  std::vector<int64_t> sets_ ABSL_GUARDED_BY(mu_);
};

// Every method has the others do the same, in one order over all threads.
class LeadingLearner : public Learner {
 public:
  LeadingLearner(std::unique_ptr<Learner> own, const Ranks& ranks)
      : own_(std::move(own)), ranks_(ranks) {}
  // The store may end with this process: the others get to read the order first. Those who cannot
  // be told any more find out by themselves.
  ~LeadingLearner() override {
    {
      MutexLock lock(&mu_);
      if (!Order("end").ok() || lost_) return;
    }
    const auto end = SteadyClock::now() + kLongestFarewell;
    for (int rank = 1; rank < ranks_.size; ++rank) {
      const auto left = std::max(end - SteadyClock::now(), SteadyClock::duration::zero());
      ranks_.store.Get(EndOf(rank), absl::FromChrono(left)).status().IgnoreError();
    }
  }

  absl::StatusOr<LearnerReport> Train(const std::vector<ScoredGroup>& groups,
                                      WeightVersion version) override {
    MutexLock lock(&mu_);
    TANDEM_RETURN_IF_ERROR(OrderWith(absl::StrCat("train ", version.value), groups));
    return Known(own_->Train(groups, version));
  }

  absl::StatusOr<GroupLogprobs> Score(const std::vector<ScoredGroup>& groups,
                                      const ScoredWeights& weights) override {
    MutexLock lock(&mu_);
    const int64_t kept = weights.masters == nullptr ? 0 : weights.masters->number;
    TANDEM_RETURN_IF_ERROR(OrderWith(absl::StrCat("score ", kept, " ", int{weights.as_bf16}, " ",
                                                  static_cast<int>(weights.rounding)),
                                     groups));
    return Known(own_->Score(groups, weights));
  }

  absl::StatusOr<double> DistanceFromStart() const override {
    MutexLock lock(&mu_);
    TANDEM_RETURN_IF_ERROR(Order("distance"));
    return Known(own_->DistanceFromStart());
  }

  // Where each rank has all masters this one casts them.
  absl::StatusOr<CastWeights> Cast(DType dtype) override {
    MutexLock lock(&mu_);
    if (!ranks_.shard_parameters) return own_->Cast(dtype);
    TANDEM_RETURN_IF_ERROR(Order(absl::StrCat("cast ", std::string(DTypeName(dtype)))));
    TANDEM_ASSIGN_OR_RETURN(CastWeights cast, Known(own_->Cast(dtype)));
    ReadByOrder(NewSet(nullptr), 0, cast.tensors);
    return cast;
  }

  absl::StatusOr<KeptMasters> Keep() override {
    MutexLock lock(&mu_);
    TANDEM_RETURN_IF_ERROR(Order("keep"));
    TANDEM_ASSIGN_OR_RETURN(KeptMasters kept, Known(own_->Keep()));
    kept.owner = NewSet(kept.owner);
    ReadByOrder(kept.owner, 0, kept.tensors);
    return kept;
  }

  absl::StatusOr<LearnerState> Save() override {
    MutexLock lock(&mu_);
    TANDEM_ASSIGN_OR_RETURN(LearnerState state, own_->Save());
    const auto live = std::make_shared<const int64_t>(kLive);
    if (ranks_.shard_parameters) ReadByOrder(live, 0, state.weights);
    ReadByOrder(live, state.weights.size(), state.optimizer);
    return state;
  }

  absl::Status Restore(const LearnerState& state) override {
    MutexLock lock(&mu_);
    TANDEM_RETURN_IF_ERROR(own_->Restore(state));
    TANDEM_RETURN_IF_ERROR(Order(absl::StrCat("restore ", state.num_updates)));
    TANDEM_ASSIGN_OR_RETURN(const LearnerState saved, own_->Save());
    TANDEM_RETURN_IF_ERROR(Lost(SendTensors(*ranks_.group, state.weights, saved.weights)));
    return Lost(SendTensors(*ranks_.group, state.optimizer, saved.optimizer));
  }

  std::string StartDigest() const override { return own_->StartDigest(); }
  int64_t num_parameters() const override { return own_->num_parameters(); }
  std::string library_version() const override { return own_->library_version(); }
  std::string kernels() const override { return own_->kernels(); }

 private:
  // The loop knows UNAVAILABLE as a server that is lost.
  absl::Status Lost(absl::Status status) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    lost_ = lost_ || !status.ok();
    return absl::IsUnavailable(status) ? WithExitCode(std::move(status), ExitCode::kRankLost)
                                       : status;
  }
  template <typename T>
  absl::StatusOr<T> Known(absl::StatusOr<T> result) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (result.ok()) return result;
    return Lost(result.status());
  }

  absl::Status Order(const std::string& head) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (const int64_t set : dropped_->Take()) {
      TANDEM_RETURN_IF_ERROR(Lost(ranks_.store.Set(NameOf(++number_), absl::StrCat("drop ", set))));
    }
    return Lost(ranks_.store.Set(NameOf(++number_), head));
  }

  // With groups, whose size comes last in the head.
  absl::Status OrderWith(const std::string& head, const std::vector<ScoredGroup>& groups)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::string bytes = Serialize(groups);
    TANDEM_RETURN_IF_ERROR(Order(absl::StrCat(head, " ", bytes.size())));
    return Lost(comm::BroadcastBytes(*ranks_.group, BytesOf(bytes), 0));
  }

  // Dropped when the last copy of what it gives goes; `of_own` lives as long.
  std::shared_ptr<const int64_t> NewSet(std::shared_ptr<const void> of_own)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return {new int64_t(++num_sets_), [dropped = dropped_, of_own](const int64_t* set) {
              dropped->Add(*set);
              delete set;
            }};
  }

  // Tensors `first` and on of a set are gathered one at a time, each by an order of its own:
  // whoever reads them may stop in the middle.
  void ReadByOrder(const std::shared_ptr<const void>& set, size_t first,
                   std::vector<TensorSource>& sources) {
    const int64_t number = *static_cast<const int64_t*>(set.get());
    for (size_t i = 0; i < sources.size(); ++i) {
      auto& read = sources[i].read;
      const std::string head = absl::StrCat("read ", number, " ", first + i);
      read = [this, set, head, own = std::move(read)]() -> absl::StatusOr<HostTensor> {
        MutexLock lock(&mu_);
        TANDEM_RETURN_IF_ERROR(Order(head));
        return Known(own());
      };
    }
  }

  const std::unique_ptr<Learner> own_;
  const Ranks ranks_;
  const std::shared_ptr<Dropped> dropped_ = std::make_shared<Dropped>();
  mutable Mutex mu_;
  mutable int64_t number_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t num_sets_ ABSL_GUARDED_BY(mu_) = kLive;
  // A step failed: who is left may not answer.
  mutable bool lost_ ABSL_GUARDED_BY(mu_) = false;
};

// Waits for an order. The store is asked by a thread of its own, so that rank 0 may hang and this
// one does not.
absl::StatusOr<std::string> NextOrder(const Ranks& ranks, int64_t number, const StopSignal& stop) {
  std::optional<SteadyClock::time_point> stopped;
  for (;;) {
    // Rank 0 was asked to stop too or hears it now, and may have a checkpoint to write.
    if (stop.Requested() && !stopped.has_value()) {
      stopped = SteadyClock::now();
      TANDEM_RETURN_IF_ERROR(ranks.store.Set(kStopAsked, absl::StrCat("rank ", ranks.rank)));
    }
    auto asked = std::make_shared<std::promise<absl::StatusOr<std::string>>>();
    auto answer = asked->get_future();
    std::thread([store = ranks.store, asked, number] {
      asked->set_value(store.Get(NameOf(number), kAsk));
    }).detach();
    if (answer.wait_for(absl::ToChronoMilliseconds(ranks.patience)) != std::future_status::ready) {
      return absl::UnavailableError(absl::StrCat("rank 0 did not answer for ",
                                                 absl::FormatDuration(ranks.patience),
                                                 ": stopped or cut off"));
    }
    absl::StatusOr<std::string> order = answer.get();
    if (order.ok() || !absl::IsDeadlineExceeded(order.status())) return order;
    if (stopped.has_value() &&
        SteadyClock::now() - *stopped > absl::ToChronoNanoseconds(ranks.patience)) {
      return absl::CancelledError("stopped, and rank 0 did not say so");
    }
  }
}

// One of the other ranks: does what it is told.
class Follower {
 public:
  Follower(Learner& own, const Ranks& ranks) : own_(own), ranks_(ranks) {}

  absl::Status Do(const std::vector<std::string>& words) {
    std::vector<int64_t> numbers(words.size() - 1);
    for (size_t i = 1; i < words.size(); ++i) {
      if (words[0] == "cast" || absl::SimpleAtoi(words[i], &numbers[i - 1])) continue;
      return Unknown(words);
    }
    const std::string& what = words[0];
    if (what == "train" && numbers.size() == 2) return Train({numbers[0]}, numbers[1]);
    if (what == "score" && numbers.size() == 4) return Score(numbers);
    if (what == "distance") return own_.DistanceFromStart().status();
    if (what == "cast" && words.size() == 2) return Cast(words[1]);
    if (what == "keep") return Keep();
    if (what == "read" && numbers.size() == 2) return Read(numbers[0], numbers[1]);
    if (what == "restore" && numbers.size() == 1) return Restore(numbers[0]);
    if (what != "drop" || numbers.size() != 1) return Unknown(words);
    sets_.erase(numbers[0]);
    return absl::OkStatus();
  }

 private:
  struct Set {
    std::vector<TensorSource> tensors;
    std::shared_ptr<const void> owner;
  };

  static absl::Status Unknown(const std::vector<std::string>& words) {
    return absl::InternalError(
        absl::StrCat("rank 0 ordered \"", absl::StrJoin(words, " "), "\", which is unknown here"));
  }

  absl::StatusOr<std::vector<ScoredGroup>> Groups(int64_t size) {
    std::string bytes(static_cast<size_t>(size), '\0');
    TANDEM_RETURN_IF_ERROR(comm::BroadcastBytes(*ranks_.group, BytesOf(bytes), 0));
    return Parse(bytes);
  }

  absl::Status Train(WeightVersion version, int64_t size) {
    TANDEM_ASSIGN_OR_RETURN(const std::vector<ScoredGroup> groups, Groups(size));
    return own_.Train(groups, version).status();
  }

  absl::Status Score(const std::vector<int64_t>& numbers) {
    TANDEM_ASSIGN_OR_RETURN(const std::vector<ScoredGroup> groups, Groups(numbers[3]));
    const KeptMasters kept = {.number = numbers[0]};
    return own_
        .Score(groups, {.masters = numbers[0] == 0 ? nullptr : &kept,
                        .as_bf16 = numbers[1] != 0,
                        .rounding = static_cast<Rounding>(numbers[2])})
        .status();
  }

  absl::Status Cast(const std::string& name) {
    TANDEM_ASSIGN_OR_RETURN(const DType dtype, DTypeFromName(name));
    TANDEM_ASSIGN_OR_RETURN(CastWeights cast, own_.Cast(dtype));
    sets_[++num_sets_] = {std::move(cast.tensors), nullptr};
    return absl::OkStatus();
  }

  absl::Status Keep() {
    TANDEM_ASSIGN_OR_RETURN(KeptMasters kept, own_.Keep());
    sets_[++num_sets_] = {std::move(kept.tensors), kept.owner};
    return absl::OkStatus();
  }

  absl::Status Read(int64_t set, int64_t index) {
    if (set == kLive && !sets_.contains(kLive)) {
      TANDEM_ASSIGN_OR_RETURN(LearnerState state, own_.Save());
      std::vector<TensorSource>& live = sets_[kLive].tensors;
      live = std::move(state.weights);
      std::ranges::move(state.optimizer, std::back_inserter(live));
    }
    const auto found = sets_.find(set);
    if (found == sets_.end() || index < 0 ||
        index >= static_cast<int64_t>(found->second.tensors.size())) {
      return absl::InternalError(
          absl::StrCat("rank 0 reads tensor ", index, " of set ", set, ", which is not there"));
    }
    return found->second.tensors[static_cast<size_t>(index)].read().status();
  }

  absl::Status Restore(int64_t num_updates) {
    TANDEM_ASSIGN_OR_RETURN(LearnerState state, own_.Save());
    state.num_updates = num_updates;
    for (std::vector<TensorSource>* const sources : {&state.weights, &state.optimizer}) {
      for (TensorSource& source : *sources) {
        source.read = [this, spec = source.spec] { return ReceiveTensor(*ranks_.group, spec); };
      }
    }
    return own_.Restore(state);
  }

  Learner& own_;
  const Ranks& ranks_;
  std::map<int64_t, Set> sets_;
  int64_t num_sets_ = kLive;
};

}  // namespace

absl::StatusOr<bool> StopAsked(const Ranks& ranks) { return ranks.store.Has(kStopAsked); }

std::unique_ptr<Learner> LeadRanks(std::unique_ptr<Learner> own, const Ranks& ranks) {
  return std::make_unique<LeadingLearner>(std::move(own), ranks);
}

absl::Status FollowOrders(Learner& own, const Ranks& ranks, const StopSignal& stop,
                          Heartbeat& heartbeat) {
  Follower follower(own, ranks);
  for (int64_t number = 1;; ++number) {
    heartbeat.Rest();
    TANDEM_ASSIGN_OR_RETURN(const std::string order, NextOrder(ranks, number, stop));
    heartbeat.Beat();
    const std::vector<std::string> words = absl::StrSplit(order, ' ');
    log::Debug("an order of rank 0", {{"number", number}, {"order", order}});
    if (words[0] == "end") return ranks.store.Set(EndOf(ranks.rank), "");
    TANDEM_RETURN_IF_ERROR(follower.Do(words));
  }
}

}  // namespace tandem::trainer
