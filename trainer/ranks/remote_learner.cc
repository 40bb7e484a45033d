#include "trainer/ranks/remote_learner.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/exit_codes.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/comm/group.h"

namespace tandem::trainer {
namespace {

using experience::v1::ScoredGroup;
using ranks::v1::Command;
using SteadyClock = std::chrono::steady_clock;

constexpr std::chrono::seconds kLongestFarewell{10};

ranks::v1::Rounding ToProto(Rounding rounding) {
  return rounding == Rounding::kNearest ? ranks::v1::ROUNDING_NEAREST
                                        : ranks::v1::ROUNDING_DITHERED;
}

Command ReadCommand(int64_t set, size_t tensor) {
  Command command;
  command.mutable_read()->set_set(set);
  command.mutable_read()->set_tensor(static_cast<int64_t>(tensor));
  return command;
}

// `state` to all ranks, one tensor at a time in the order of `wanted`. Each goes through a copy: it
// may be a live weight.
absl::Status BroadcastTensors(comm::Collective& collective, const std::vector<TensorSource>& state,
                              const std::vector<TensorSource>& wanted) {
  std::map<std::string, const TensorSource*> by_name;
  for (const TensorSource& source : state) by_name[source.spec.name] = &source;
  for (const TensorSource& source : wanted) {
    TANDEM_ASSIGN_OR_RETURN(const HostTensor tensor, by_name.at(source.spec.name)->read());
    std::vector<std::byte> bytes(tensor.bytes.begin(), tensor.bytes.end());
    TANDEM_RETURN_IF_ERROR(comm::BroadcastBytes(collective, bytes, 0));
  }
  return absl::OkStatus();
}

// Sets that nobody on rank 0 can read any more. The other ranks are told before the next command:
// whoever drops the last copy may be on any thread, and in the middle of another command.
class DroppedSets {
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

// Holds one lock while a command is sent and while its work is done here, so that the collective
// operations of two threads never mix.
class RemoteLearner : public Learner {
 public:
  RemoteLearner(std::unique_ptr<Learner> own, const RankLink& link)
      : own_(std::move(own)), link_(link), sender_(link.store) {}
  // The store may end with this process, so the other ranks get to read the command first. Ranks
  // that cannot be told any more find out by themselves.
  ~RemoteLearner() override {
    {
      MutexLock lock(&mu_);
      Command command;
      command.mutable_end();
      if (!Send(command).ok() || lost_) return;
    }
    const auto end = SteadyClock::now() + kLongestFarewell;
    for (int rank = 1; rank < link_.size; ++rank) {
      const auto left = std::max(end - SteadyClock::now(), SteadyClock::duration::zero());
      link_.store.Get(EndedName(rank), absl::FromChrono(left)).status().IgnoreError();
    }
  }

  absl::StatusOr<LearnerReport> Train(const std::vector<ScoredGroup>& groups,
                                      WeightVersion version) override {
    MutexLock lock(&mu_);
    Command command;
    ranks::v1::Train& train = *command.mutable_train();
    train.set_weight_version(version.value);
    TANDEM_RETURN_IF_ERROR(SendWithGroups(command, groups, train.mutable_group_bytes()));
    return Noted(own_->Train(groups, version));
  }

  absl::StatusOr<GroupLogprobs> Score(const std::vector<ScoredGroup>& groups,
                                      const ScoredWeights& weights) override {
    MutexLock lock(&mu_);
    Command command;
    ranks::v1::Score& score = *command.mutable_score();
    score.set_kept_masters(weights.masters == nullptr ? 0 : weights.masters->number);
    score.set_as_bf16(weights.as_bf16);
    score.set_rounding(ToProto(weights.rounding));
    TANDEM_RETURN_IF_ERROR(SendWithGroups(command, groups, score.mutable_group_bytes()));
    return Noted(own_->Score(groups, weights));
  }

  absl::StatusOr<double> DistanceFromStart() const override {
    MutexLock lock(&mu_);
    Command command;
    command.mutable_distance_from_start();
    TANDEM_RETURN_IF_ERROR(Send(command));
    return Noted(own_->DistanceFromStart());
  }

  // Where each rank has all masters, this one casts them without the others.
  absl::StatusOr<CastWeights> Cast(DType dtype) override {
    MutexLock lock(&mu_);
    if (!link_.shard_parameters) return own_->Cast(dtype);
    Command command;
    command.mutable_cast()->set_dtype(std::string(DTypeName(dtype)));
    TANDEM_RETURN_IF_ERROR(Send(command));
    TANDEM_ASSIGN_OR_RETURN(CastWeights cast, Noted(own_->Cast(dtype)));
    ReadByCommand(NewSet(nullptr), 0, cast.tensors);
    return cast;
  }

  absl::StatusOr<KeptMasters> Keep() override {
    MutexLock lock(&mu_);
    Command command;
    command.mutable_keep();
    TANDEM_RETURN_IF_ERROR(Send(command));
    TANDEM_ASSIGN_OR_RETURN(KeptMasters kept, Noted(own_->Keep()));
    kept.owner = NewSet(kept.owner);
    ReadByCommand(kept.owner, 0, kept.tensors);
    return kept;
  }

  absl::StatusOr<LearnerState> Save() override {
    MutexLock lock(&mu_);
    TANDEM_ASSIGN_OR_RETURN(LearnerState state, own_->Save());
    const auto live = std::make_shared<const int64_t>(kLiveSet);
    if (link_.shard_parameters) ReadByCommand(live, 0, state.weights);
    ReadByCommand(live, state.weights.size(), state.optimizer);
    return state;
  }

  absl::Status Restore(const LearnerState& state) override {
    MutexLock lock(&mu_);
    TANDEM_RETURN_IF_ERROR(own_->Restore(state));
    Command command;
    command.mutable_restore()->set_num_updates(state.num_updates);
    command.mutable_restore()->mutable_numbers()->insert(state.numbers.begin(),
                                                         state.numbers.end());
    TANDEM_RETURN_IF_ERROR(Send(command));
    TANDEM_ASSIGN_OR_RETURN(const LearnerState saved, own_->Save());
    TANDEM_RETURN_IF_ERROR(
        Noted(BroadcastTensors(*link_.collective, state.weights, saved.weights)));
    return Noted(BroadcastTensors(*link_.collective, state.optimizer, saved.optimizer));
  }

  std::string StartDigest() const override { return own_->StartDigest(); }
  int64_t num_parameters() const override { return own_->num_parameters(); }
  std::string library_version() const override { return own_->library_version(); }
  std::string kernels() const override { return own_->kernels(); }

 private:
  // Remembers a failure. UNAVAILABLE gets the exit code of a lost rank: to the loop it would mean
  // a server that is lost.
  absl::Status Noted(absl::Status status) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    lost_ = lost_ || !status.ok();
    return absl::IsUnavailable(status) ? WithExitCode(std::move(status), ExitCode::kRankLost)
                                       : status;
  }
  template <typename T>
  absl::StatusOr<T> Noted(absl::StatusOr<T> result) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (result.ok()) return result;
    return Noted(result.status());
  }

  absl::Status Send(const Command& command) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (const int64_t set : dropped_->Take()) {
      Command drop;
      drop.mutable_drop()->set_set(set);
      TANDEM_RETURN_IF_ERROR(Noted(sender_.Send(drop)));
    }
    return Noted(sender_.Send(command));
  }

  // The groups follow the command; their sizes go into `sizes`, which is a part of it.
  absl::Status SendWithGroups(const Command& command, const std::vector<ScoredGroup>& groups,
                              GroupSizes* sizes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::string bytes = SerializeGroups(groups, sizes);
    TANDEM_RETURN_IF_ERROR(Send(command));
    const auto span = std::as_writable_bytes(std::span(bytes.data(), bytes.size()));
    return Noted(comm::BroadcastBytes(*link_.collective, span, 0));
  }

  // The number of the set that the command before this made on all ranks. It is dropped when the
  // last copy of the result goes; `own` lives as long.
  std::shared_ptr<const int64_t> NewSet(std::shared_ptr<const void> own)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return {new int64_t(++num_sets_), [dropped = dropped_, own](const int64_t* set) {
              dropped->Add(*set);
              delete set;
            }};
  }

  // The tensors of a set from `first` on are gathered one at a time, each by a command of its own,
  // because whoever reads them may stop in the middle.
  void ReadByCommand(const std::shared_ptr<const void>& set, size_t first,
                     std::vector<TensorSource>& sources) {
    const int64_t number = *static_cast<const int64_t*>(set.get());
    for (size_t i = 0; i < sources.size(); ++i) {
      auto& read = sources[i].read;
      const Command command = ReadCommand(number, first + i);
      read = [this, set, command, own = std::move(read)]() -> absl::StatusOr<HostTensor> {
        MutexLock lock(&mu_);
        TANDEM_RETURN_IF_ERROR(Send(command));
        return Noted(own());
      };
    }
  }

  const std::unique_ptr<Learner> own_;
  const RankLink link_;
  const std::shared_ptr<DroppedSets> dropped_ = std::make_shared<DroppedSets>();
  mutable Mutex mu_;
  mutable CommandSender sender_ ABSL_GUARDED_BY(mu_);
  int64_t num_sets_ ABSL_GUARDED_BY(mu_) = kLiveSet;
  // Something failed: the ranks that are left may not answer.
  mutable bool lost_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

std::unique_ptr<Learner> LeadRanks(std::unique_ptr<Learner> own, const RankLink& link) {
  return std::make_unique<RemoteLearner>(std::move(own), link);
}

}  // namespace tandem::trainer
