// Commands from rank 0 to the other ranks of a trainer (proto/ranks.proto), and how they travel.
// Used by remote_learner.cc and command_follower.cc. Free of LibTorch.
//
// The idea: rank 0 numbers its commands 1, 2, 3 ... and writes each to the store under its number;
// every other rank reads them in that order. A command goes through the store and not through the
// collective, because the others wait for it as long as rank 0 collects rollouts, and a collective
// operation has a deadline that would end the wait. What is large (groups, tensors) follows through
// the collective, at which all ranks have arrived by then.
//
// What holds: a rank counts itself as a reader once it has a command, and the last reader deletes
// the command and the counter, so the store holds no more than what somebody has yet to read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/process/stop_signal.h"
#include "common/rendezvous/store.h"
#include "proto/experience.pb.h"
#include "proto/ranks.pb.h"

namespace tandem::comm {
class Collective;
}

namespace tandem::trainer {

// This rank's way to the others. A copy shares the store's connection; the collective outlives it.
struct RankLink {
  int rank = 0, size = 1;
  comm::Collective* collective = nullptr;  // tensors and bytes in host memory
  comm::Store store;
  // How long rank 0 may be silent while the others wait for a command.
  absl::Duration patience = absl::Minutes(1);
  bool shard_parameters = false;  // each rank holds a part of the weights
};

// Rank 0. Use from one thread at a time.
class CommandSender {
 public:
  explicit CommandSender(const comm::Store& store) : store_(store) {}

  // UNAVAILABLE: the store is gone.
  absl::Status Send(const ranks::v1::Command& command);

 private:
  const comm::Store store_;
  int64_t num_sent_ = 0;
};

// The other ranks. One thread asks the store, so that a store that hangs, because rank 0 is stopped
// or cut off, does not hang its caller. Use from one thread.
class CommandPoller {
 public:
  explicit CommandPoller(const RankLink& link);
  // Waits for the thread up to a few seconds, and leaves it behind when its call hangs.
  ~CommandPoller();

  // The next command; waits for it. When `stop` was requested rank 0 is told so, and the wait goes
  // on: rank 0 may have a checkpoint to write before it ends all ranks.
  //   UNAVAILABLE  the store is gone, or did not answer for the link's patience
  //   CANCELLED    `stop` was requested, and no command came for the link's patience
  //   INTERNAL     it does not parse
  absl::StatusOr<ranks::v1::Command> Next(const StopSignal& stop);

 private:
  struct Shared;

  const absl::Duration patience_;
  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
  int64_t num_read_ = 0;
};

// Cast and Keep make sets of tensors of which each rank holds a part. They are numbered on all
// ranks alike, in the order of the commands, from 1; this one is what Save gives, masters and
// moments.
inline constexpr int64_t kLiveSet = 0;

// The name in the store under which a rank says that it has read the end of the run.
std::string EndedName(int rank);

// Whether a signal asked another rank to stop. UNAVAILABLE: the store is gone.
absl::StatusOr<bool> StopAsked(const RankLink& link);

using GroupSizes = google::protobuf::RepeatedField<int64_t>;

// Rank 0: the groups one after the other, and the bytes of each for the command. They are broadcast
// after the command was sent.
std::string SerializeGroups(const std::vector<experience::v1::ScoredGroup>& groups,
                            GroupSizes* sizes);

// The other ranks. Errors: those of the collective; INTERNAL: the groups do not parse.
absl::StatusOr<std::vector<experience::v1::ScoredGroup>> ReceiveGroups(comm::Collective& collective,
                                                                       const GroupSizes& sizes);

}  // namespace tandem::trainer
