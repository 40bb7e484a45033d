// Ownership: which run a rollout server belongs to, until when, and under which membership epoch.
// A second trainer is refused until the first releases the server or its lease ends.
//
// Thread-safe. Time comes in through the constructor; a lease runs on the monotonic clock.
#ifndef TANDEM_ROLLOUT_SERVER_OWNERSHIP_H_
#define TANDEM_ROLLOUT_SERVER_OWNERSHIP_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace tandem::rollout {

inline constexpr size_t kMaxRunIdBytes = 256;

class Ownership {
 public:
  // `default_lease_seconds` > 0 is taken when a claim names none.
  Ownership(SecondsClock clock, double default_lease_seconds);

  // Makes `run_id` the owner, or renews it. True when owner or epoch are new, false for a repeated
  // call.
  //   FAILED_PRECONDITION  another run owns the server (named, with the seconds its lease has left)
  //   INVALID_ARGUMENT     run_id empty or over kMaxRunIdBytes; epoch < 1 or below the live one of
  //   the same run; lease_ms < 0
  absl::StatusOr<bool> Claim(const std::string& run_id, int64_t epoch, int64_t lease_ms)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Gives the server back. OK when it is free already.
  //   FAILED_PRECONDITION  another run owns it
  absl::Status Release(const std::string& run_id) ABSL_LOCKS_EXCLUDED(mu_);

  // Weight calls: only the owner, whose lease this renews.
  //   FAILED_PRECONDITION  nobody or another run owns the server
  absl::Status CheckOwner(const std::string& run_id) ABSL_LOCKS_EXCLUDED(mu_);

  // As CheckOwner, and `epoch` must be the claimed one.
  absl::Status CheckEpoch(const std::string& run_id, int64_t epoch) ABSL_LOCKS_EXCLUDED(mu_);

  // Generation and scoring: the owner (renewed), guests (empty run_id), anyone while the server is
  // free.
  //   FAILED_PRECONDITION  another run owns the server
  absl::Status CheckUser(const std::string& run_id) ABSL_LOCKS_EXCLUDED(mu_);

  std::string owner() const ABSL_LOCKS_EXCLUDED(mu_);  // empty: free

  // A group call of `run_id`, admitted or not, that wants weights of at least `min_version`. Noted
  // when it is the owner's.
  void NoteAsked(const std::string& run_id, int64_t min_version) ABSL_LOCKS_EXCLUDED(mu_);

  struct LiveClaim {
    std::string run_id;
    int64_t epoch = 0;
    bool has_asked = false;           // for groups, under this epoch
    int64_t highest_min_version = 0;  // of those calls
  };
  std::optional<LiveClaim> claim() const ABSL_LOCKS_EXCLUDED(mu_);  // none: free

 private:
  bool Held() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status OwnedByAnother() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Renew() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const SecondsClock clock_;
  const double default_lease_seconds_;

  mutable Mutex mu_;
  LiveClaim claim_ ABSL_GUARDED_BY(mu_);  // the last one; its run owns while Held()
  double lease_seconds_ ABSL_GUARDED_BY(mu_) = 0;
  double lease_end_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace tandem::rollout

#endif  // TANDEM_ROLLOUT_SERVER_OWNERSHIP_H_
