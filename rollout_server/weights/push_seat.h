// PushSeat: this server's seat in the group of a trainer and its servers, through which weights
// come in broadcasts of the trainer (stage 9). WeightService lets it join and receive.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/comm/push_member.h"
#include "common/weights/wire_buckets.h"
#include "rollout_server/weights/bucket_store.h"

namespace tandem::rollout {

// Join and Receive: from one thread. Abort, Leave and Close: from any, and each ends what that
// thread is in.
class PushSeat {
 public:
  // Leaves the group it was in, and waits for all members of this one.
  //   NOT_FOUND         the library with LibTorch is not beside this program
  //   INVALID_ARGUMENT  a rank out of range, no store, a deadline that is not positive
  //   ABORTED           the trainer called the group off, or Leave or Close was called
  //   UNAVAILABLE       the store cannot be reached, or not all members came (named)
  //   any error of `still_offered`, which is asked when a Leave ends this Join already: so whoever
  //                     takes the offer back and then calls Leave ends it, however the two meet
  absl::Status Join(const comm::PushSeatOffer& offer,
                    const std::function<absl::Status()>& still_offered) ABSL_LOCKS_EXCLUDED(mu_);

  // Takes buckets as the trainer sends them into rooms of `store`; each slice goes on from there in
  // order, while the next buckets are under way. After an error the group is left.
  //   FAILED_PRECONDITION  not in the group of `membership`
  //   ABORTED              Abort was called
  //   UNAVAILABLE          a member was lost, hangs or lags (named)
  //   any error of `store`; after one of Store the other members are broadcast to nonetheless
  absl::Status Receive(int64_t membership, const std::vector<Bucket>& buckets, BucketStore& store)
      ABSL_LOCKS_EXCLUDED(mu_);

  // A Receive under way fails, no later than at its deadline, and the group is left. Else nothing.
  void Abort(const std::string& reason) ABSL_LOCKS_EXCLUDED(mu_);

  // As Abort, and in any case the group is left; a Join under way fails within seconds. One that
  // hangs in the trainer's store is left to a thread of its own.
  void Leave(const std::string& reason) ABSL_LOCKS_EXCLUDED(mu_);

  // As Leave, for good: later Joins fail at once.
  void Close(const std::string& reason) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Joining;
  static absl::StatusOr<std::shared_ptr<comm::PushMember>> JoinUnlessCalledOff(
      comm::PushSeatOffer offer, const std::shared_ptr<Joining>& joining);
  std::shared_ptr<comm::PushMember> StartReceive(int64_t membership) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status EndReceive(const std::shared_ptr<comm::PushMember>& group, absl::Status received,
                          absl::Status stored) ABSL_LOCKS_EXCLUDED(mu_);

  mutable Mutex mu_;
  std::shared_ptr<comm::PushMember> member_ ABSL_GUARDED_BY(mu_);  // null: in none
  int64_t membership_ ABSL_GUARDED_BY(mu_) = 0;
  bool receiving_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status closed_ ABSL_GUARDED_BY(mu_);
  // Of the Join under way, shared with the thread that makes it; null: none.
  std::shared_ptr<Joining> joining_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tandem::rollout
