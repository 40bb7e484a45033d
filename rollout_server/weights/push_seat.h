// PushSeat: this server's membership in the process group of a trainer and its servers, in which
// the trainer broadcasts weights (stage 9). Used by WeightService.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/comm/push_member.h"
#include "common/model/numerics.h"
#include "common/weights/wire_buckets.h"

namespace tandem::rollout {

// Where the buckets of a weight push go at a server: through host memory into staging, or to the
// next weights in the memory of the engine's device. WeightReceiver makes one for each push, and
// PushSeat fills it. Use from one thread.
class BucketStore {
 public:
  virtual ~BucketStore() = default;

  virtual Device memory() const = 0;  // of the buffers

  // Receive buffer `index`, 0 or 1, for a bucket. It is valid until the same buffer is requested
  // again.
  //   RESOURCE_EXHAUSTED  no memory
  //   INTERNAL            the device failed
  virtual absl::StatusOr<std::span<std::byte>> Buffer(size_t index, int64_t num_bytes) = 0;

  // Stores the bytes of a slice, which lie in a buffer and may be overwritten once this returns.
  // Errors: those of WeightReceiver::Receive and ArrivingWeights::Write.
  virtual absl::Status Store(const BucketSlice& slice, std::span<const std::byte> bytes) = 0;
};

// Call Join and Receive from one thread. Abort, Leave and Close may be called from any thread, and
// end a call in progress.
class PushSeat {
 public:
  // Leaves the group it was in, and waits for all members of this one.
  //   NOT_FOUND         the library with LibTorch is not beside this program
  //   INVALID_ARGUMENT  a rank out of range, no store, a deadline that is not positive
  //   ABORTED           the trainer cancelled the group, or Leave or Close was called
  //   UNAVAILABLE       the store cannot be reached, or not all members came (named)
  //   any error of `still_offered`, which is called once a Leave would end this Join. So whoever
  //                     withdraws the offer and then calls Leave ends the Join in any interleaving.
  absl::Status Join(const comm::PushSeatOffer& offer,
                    const std::function<absl::Status()>& still_offered) ABSL_LOCKS_EXCLUDED(mu_);

  // Receives buckets, as the trainer sends them, into buffers of `store`, and stores their slices
  // in order while the next bucket arrives. Leaves the group after an error.
  //   FAILED_PRECONDITION  not in the group of `membership`
  //   ABORTED              Abort was called
  //   UNAVAILABLE          a member was lost, hangs or lags (named)
  //   any error of `store`; after one of Store the broadcasts still go on, for the other members
  absl::Status Receive(int64_t membership, const std::vector<Bucket>& buckets, BucketStore& store)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Makes a Receive in progress fail, at its deadline at the latest, and leaves the group. Does
  // nothing when there is none.
  void Abort(const std::string& reason) ABSL_LOCKS_EXCLUDED(mu_);

  // As Abort, and always leaves the group. A Join in progress fails within seconds; when it hangs
  // in the trainer's store, its thread is left behind.
  void Leave(const std::string& reason) ABSL_LOCKS_EXCLUDED(mu_);

  // As Leave, for good: later Joins fail at once.
  void Close(const std::string& reason) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Joining;
  static absl::StatusOr<std::shared_ptr<comm::PushMember>> JoinUnlessCalledOff(
      comm::PushSeatOffer offer, const std::shared_ptr<Joining>& joining);

  mutable Mutex mu_;
  std::shared_ptr<comm::PushMember> member_ ABSL_GUARDED_BY(mu_);  // null: in none
  int64_t membership_ ABSL_GUARDED_BY(mu_) = 0;
  bool receiving_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status closed_ ABSL_GUARDED_BY(mu_);
  // The Join in progress, shared with its thread; null: none.
  std::shared_ptr<Joining> joining_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tandem::rollout
