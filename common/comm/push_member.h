// PushMember: a server's membership in a push group, without LibTorch: what makes it lies in a
// shared library of its own, which a server loads when a trainer first offers it a seat. So a
// server that gets its weights by the stream starts without LibTorch.
#ifndef TANDEM_COMMON_COMM_PUSH_MEMBER_H_
#define TANDEM_COMMON_COMM_PUSH_MEMBER_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/comm/pending.h"
#include "common/comm/push_seat_offer.h"

namespace tandem::comm {

// In a group. StartBroadcast: from one thread; Abort: from any.
class PushMember {
 public:
  virtual ~PushMember() = default;

  // `bytes`, in memory of `where`, becomes rank 0's, as StartBroadcastBytes (group.h). Errors of
  // the collective, which name the culprit.
  virtual Pending StartBroadcast(std::span<std::byte> bytes, Device where) = 0;

  // Later operations fail at once, those under way no later than at their deadline.
  virtual void Abort(const std::string& reason) = 0;
};

// Loads the library (once) and takes the seat. Waits for all members.
//   NOT_FOUND    the library is not beside this program (named)
//   ABORTED      the trainer called the group off
//   UNAVAILABLE  the store cannot be reached, or not all members came (named)
absl::StatusOr<std::unique_ptr<PushMember>> JoinPushGroup(const PushSeatOffer& offer);

// What the library exports under this name.
using JoinPushGroupFunction = absl::Status (*)(const PushSeatOffer& offer,
                                               std::unique_ptr<PushMember>* member);
inline constexpr char kJoinPushGroupSymbol[] = "TandemJoinPushGroup";
inline constexpr char kPushMemberLibrary[] = "libtandem_push_member.so";

}  // namespace tandem::comm

#endif  // TANDEM_COMMON_COMM_PUSH_MEMBER_H_
