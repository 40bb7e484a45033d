// PushGroup: the trainer's end of the group {trainer, servers} through which weights go in
// broadcasts (stage 9). Used by WeightPublisher, from its thread.
//
// One group per membership: it is made anew when other servers are to get weights, and after any
// failure with who is left. Never the group that the trainer's ranks train in. Trusted networks
// only: the store and the connections of c10d know no authentication.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/comm/group.h"
#include "common/options/options.h"
#include "common/rendezvous/store.h"
#include "trainer/weight_push/weight_remote.h"

namespace tandem::comm {
class Collective;
}

namespace tandem::trainer {

struct PushGroupOptions {
  std::string host;  // of this process, for servers; empty: where they see its calls come from
  int64_t port = 0;  // of the store they meet at; 0: any free one
  comm::Backend backend = comm::Backend::kGloo;
  double deadline_seconds = 30;
  int64_t bucket_bytes = int64_t{32} << 20;
};
void BindOptions(OptionBinder& binder, PushGroupOptions& options);

class PushGroup {
 public:
  PushGroup(const std::string& run_id, const PushGroupOptions& options);
  ~PushGroup();

  // Makes the group of `remotes`, unless it is that already; of each, whether it is in. Who cannot
  // join keeps the others waiting no longer than its own answer takes.
  //   UNAVAILABLE  a server that cannot reach the store, or that the others cannot reach; or the
  //                store could not be opened here (then all have it)
  std::vector<absl::Status> Form(int64_t epoch, std::span<WeightRemote* const> remotes);

  // May a version whose bytes are made in `memory` go from there straight into the memory of the
  // engines of all members? Known since the group was formed: what its operations work on is the
  // memory of a GPU or of the host, and every server said whether its engine has a place there.
  bool TakesOnDevice(Device memory) const;

  // Sends to all members, which have begun the update: from payload.on_device where it is not null,
  // which TakesOnDevice must have allowed. Copying, sending and, on the other side,
  // storing overlap. Of each member: what became of it. After an error the group is no more.
  //   UNAVAILABLE  a member was lost, hangs or lags (named)
  //   any error of a server's ReceiveBuckets
  std::vector<absl::Status> Send(const WeightPayload& payload);

  // `remote` was started anew: the next Form makes another group.
  void Forget(const WeightRemote* remote);

 private:
  absl::StatusOr<comm::Store> OpenStore(std::span<WeightRemote* const> remotes);
  std::vector<absl::Status> TryForm(std::span<WeightRemote* const> remotes);
  int64_t bucket_bytes() const;
  absl::Status Broadcast(const WeightPayload& payload);

  const std::string run_id_;
  const PushGroupOptions options_;
  std::unique_ptr<comm::Store> store_;         // null before the first group
  comm::Reach reach_ = comm::Reach::kMachine;  // of store_
  int64_t epoch_ = 0;
  int64_t membership_ = 0;
  std::shared_ptr<comm::Collective> group_;  // null: none
  std::vector<WeightRemote*> members_;       // ranks 1, 2, ... of it
  bool all_take_on_device_ = false;          // in the memory that the group works on
};

}  // namespace tandem::trainer
