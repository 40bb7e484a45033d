// PushMember: a server's membership in a push group, without LibTorch in the header. The
// implementation is in a shared library, which a server loads when a trainer first offers it a
// seat. A server that receives its weights by the stream transport therefore starts without loading
// LibTorch.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/comm/group.h"

namespace tandem::comm {

// A member of a group. Call StartBroadcast from one thread; Abort may be called from any thread.
class PushMember {
 public:
  virtual ~PushMember() = default;

  // Replaces `bytes`, in the memory of `where`, by rank 0's, as StartBroadcastBytes (group.h) does.
  // Errors are those of the collective, which name the culprits.
  virtual Pending StartBroadcast(std::span<std::byte> bytes, Device where) = 0;

  // Makes later operations fail at once. Operations in progress fail at their deadline at the
  // latest.
  virtual void Abort(const std::string& reason) = 0;
};

// The place in a push group that the trainer offers a server.
struct PushSeatOffer {
  std::string run_id;
  int64_t epoch = 0;
  int64_t membership = 0;
  Backend backend = Backend::kGloo;
  std::string store_host;  // empty: the address that the offer came from
  int store_port = 0;
  int rank = 0;                                         // at least 1; rank 0 is the trainer
  std::vector<std::string> members;                     // name of each rank, for messages
  absl::Duration deadline;                              // of each operation, and of connecting
  std::shared_ptr<const std::atomic<bool>> called_off;  // set: stop waiting
};

// Loads the library on the first call, takes the seat, and waits for all members.
//   NOT_FOUND    the library is not beside this program (the message names the path)
//   ABORTED      the trainer cancelled the group
//   UNAVAILABLE  the store cannot be reached, or not all members came (named)
absl::StatusOr<std::unique_ptr<PushMember>> JoinPushGroup(const PushSeatOffer& offer);

// The function that the library exports, and its name.
using JoinPushGroupFunction = absl::Status (*)(const PushSeatOffer& offer,
                                               std::unique_ptr<PushMember>* member);
inline constexpr char kJoinPushGroupSymbol[] = "TandemJoinPushGroup";
inline constexpr char kPushMemberLibrary[] = "libtandem_push_member.so";

}  // namespace tandem::comm
