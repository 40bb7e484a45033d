#include "trainer/ranks/command_follower.h"

#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/comm/group.h"

namespace tandem::trainer {
namespace {

using experience::v1::ScoredGroup;
using ranks::v1::Command;

// Both sides name a tensor by its set and its place there, so this side makes the same sets in the
// same order as rank 0 does (remote_learner.cc).
class CommandFollower {
 public:
  CommandFollower(Learner& own, const RankLink& link) : own_(own), link_(link) {}

  absl::Status Do(const Command& command) {
    switch (command.work_case()) {
      case Command::kTrain:
        return Train(command.train());
      case Command::kScore:
        return Score(command.score());
      case Command::kDistanceFromStart:
        return own_.DistanceFromStart().status();
      case Command::kCast:
        return Cast(command.cast());
      case Command::kKeep:
        return Keep();
      case Command::kRead:
        return Read(command.read().set(), command.read().tensor());
      case Command::kRestore:
        return Restore(command.restore());
      case Command::kDrop:
        sets_.erase(command.drop().set());
        return absl::OkStatus();
      case Command::kEnd:
        return link_.store.Set(EndedName(link_.rank), "");
      case Command::WORK_NOT_SET:
        break;
    }
    return Internal("rank 0 sent a command that is unknown here");
  }

 private:
  struct TensorSet {
    std::vector<TensorSource> tensors;
    std::shared_ptr<const void> owner;
  };

  absl::Status Train(const ranks::v1::Train& train) {
    TANDEM_ASSIGN_OR_RETURN(const std::vector<ScoredGroup> groups,
                            ReceiveGroups(*link_.collective, train.group_bytes()));
    return own_.Train(groups, WeightVersion{train.weight_version()}).status();
  }

  absl::Status Score(const ranks::v1::Score& score) {
    TANDEM_ASSIGN_OR_RETURN(const std::vector<ScoredGroup> groups,
                            ReceiveGroups(*link_.collective, score.group_bytes()));
    const KeptMasters kept = {.number = score.kept_masters()};
    const ScoredWeights weights = {.masters = score.kept_masters() == 0 ? nullptr : &kept,
                                   .as_bf16 = score.as_bf16(),
                                   .rounding = score.rounding() == ranks::v1::ROUNDING_NEAREST
                                                   ? Rounding::kNearest
                                                   : Rounding::kDither};
    return own_.Score(groups, weights).status();
  }

  absl::Status Cast(const ranks::v1::Cast& cast) {
    TANDEM_ASSIGN_OR_RETURN(const DType dtype, DTypeFromName(cast.dtype()));
    TANDEM_ASSIGN_OR_RETURN(CastWeights weights, own_.Cast(dtype));
    sets_[++num_sets_] = {std::move(weights.tensors), nullptr};
    return absl::OkStatus();
  }

  absl::Status Keep() {
    TANDEM_ASSIGN_OR_RETURN(KeptMasters kept, own_.Keep());
    sets_[++num_sets_] = {std::move(kept.tensors), kept.owner};
    return absl::OkStatus();
  }

  absl::Status Read(int64_t set, int64_t tensor) {
    if (set == kLiveSet && !sets_.contains(kLiveSet)) {
      TANDEM_ASSIGN_OR_RETURN(LearnerState state, own_.Save());
      std::vector<TensorSource>& live = sets_[kLiveSet].tensors;
      live = std::move(state.weights);
      std::ranges::move(state.optimizer, std::back_inserter(live));
    }
    const auto found = sets_.find(set);
    if (found == sets_.end() || tensor < 0 ||
        tensor >= static_cast<int64_t>(found->second.tensors.size())) {
      return Internal("rank 0 reads tensor ", tensor, " of set ", set, ", which is not there");
    }
    return found->second.tensors[static_cast<size_t>(tensor)].read().status();
  }

  absl::Status Restore(const ranks::v1::Restore& restore) {
    TANDEM_ASSIGN_OR_RETURN(LearnerState state, own_.Save());
    state.num_updates = restore.num_updates();
    state.numbers = {restore.numbers().begin(), restore.numbers().end()};
    for (std::vector<TensorSource>* const sources : {&state.weights, &state.optimizer}) {
      for (TensorSource& source : *sources) {
        source.read = [this, spec = source.spec] { return Receive(spec); };
      }
    }
    return own_.Restore(state);
  }

  // One tensor of rank 0's. This rank's own tensors say which there are: all ranks have one model.
  absl::StatusOr<HostTensor> Receive(const TensorSpec& spec) const {
    auto bytes = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(spec.num_bytes()));
    TANDEM_RETURN_IF_ERROR(comm::BroadcastBytes(*link_.collective, *bytes, 0));
    return HostTensor{spec, *bytes, bytes};
  }

  Learner& own_;
  const RankLink& link_;
  std::map<int64_t, TensorSet> sets_;
  int64_t num_sets_ = kLiveSet;
};

}  // namespace

absl::Status FollowCommands(Learner& own, const RankLink& link, const StopSignal& stop,
                            Heartbeat& heartbeat) {
  CommandPoller poller(link);
  CommandFollower follower(own, link);
  for (int64_t number = 1;; ++number) {
    heartbeat.Rest();
    TANDEM_ASSIGN_OR_RETURN(const Command command, poller.Next(stop));
    heartbeat.Beat();
    log::Debug("a command of rank 0",
               {{"number", number}, {"command", command.ShortDebugString()}});
    TANDEM_RETURN_IF_ERROR(follower.Do(command));
    if (command.has_end()) return absl::OkStatus();
  }
}

}  // namespace tandem::trainer
