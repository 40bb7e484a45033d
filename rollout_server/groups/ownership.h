// Ownership: which run a rollout server belongs to, until when, and under which membership epoch.
// A second trainer is refused until the first releases the server or its lease ends.
//
// A run id is a name, not a proof: GetInfo shows it to everybody. So a claim is bound to the secret
// that its caller showed and, under TLS, to the name in its certificate. A call that names the
// owner's run id without both is refused.
//
// Thread-safe. Time comes in through the constructor; a lease runs on the monotonic clock.
#pragma once

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
inline constexpr double kMaxLeaseSeconds = 86400;

// Who makes a call, as far as the call shows it.
struct CallerProof {
  std::string run_id;       // that it names; empty: a client without ownership
  std::string certificate;  // the name in its certificate; empty in plaintext
  std::string secret;       // common/rpc/caller_secret.h; empty: it showed none
};

// A run id is shown on terminals, in logs, in metrics and to other callers. Empty is allowed: it is
// that of a client without ownership.
//   INVALID_ARGUMENT  over kMaxRunIdBytes, or with characters that act on a terminal (printable.h)
absl::Status CheckRunId(const std::string& run_id);

// Tells callers apart that name the same run or none: a text of 64 bytes, equal only for the same
// certificate and secret. Empty for a caller that shows neither. It does not reveal the secret.
std::string ScopeOf(const CallerProof& who);

// What a caller that is let in is to the server.
enum class Standing {
  kOwner,     // of the run that owns the server, with proof
  kNotOwner,  // a client without ownership, while a run owns the server
  kUnowned,   // nobody owns the server
};

class Ownership {
 public:
  // `default_lease_seconds` > 0 holds for a claim that names no lease.
  Ownership(SecondsClock clock, double default_lease_seconds);

  // All calls that name the owner's run id without its proof fail with
  //   PERMISSION_DENIED    another secret or certificate than the claim came with
  // and renew nothing.

  // Makes the caller's run the owner, or renews it. True when owner or epoch are new, false for a
  // repeated call.
  //   FAILED_PRECONDITION  another run owns the server (named, with the seconds its lease has left)
  //   INVALID_ARGUMENT     run_id empty, over kMaxRunIdBytes or not printable; no secret, or one of
  //                        the wrong length; epoch < 1 or below the live one of the same run;
  //                        lease_ms < 0 or over kMaxLeaseSeconds
  absl::StatusOr<bool> Claim(const CallerProof& who, int64_t epoch, int64_t lease_ms)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Gives the server back. OK when it is free already.
  //   FAILED_PRECONDITION  another run owns it
  absl::Status Release(const CallerProof& who) ABSL_LOCKS_EXCLUDED(mu_);

  // Weight calls: only the owner, whose lease this renews.
  //   FAILED_PRECONDITION  nobody or another run owns the server
  absl::Status CheckOwner(const CallerProof& who) ABSL_LOCKS_EXCLUDED(mu_);

  // As CheckOwner, and `epoch` must be the claimed one.
  absl::Status CheckEpoch(const CallerProof& who, int64_t epoch) ABSL_LOCKS_EXCLUDED(mu_);

  // Generation and scoring: for the owner (renewed), for clients without ownership (empty run_id),
  // and for anyone while the server is free.
  //   FAILED_PRECONDITION  another run owns the server
  absl::StatusOr<Standing> CheckUser(const CallerProof& who) ABSL_LOCKS_EXCLUDED(mu_);

  std::string owner() const ABSL_LOCKS_EXCLUDED(mu_);  // empty: free

  // Notes a group call of the owner, admitted or not, that wants weights of at least `min_version`.
  // Calls of anybody else are ignored.
  void NoteAsked(const CallerProof& who, int64_t min_version) ABSL_LOCKS_EXCLUDED(mu_);

  struct LiveClaim {
    std::string run_id;
    std::string caller;  // ScopeOf who claimed
    int64_t epoch = 0;
    bool has_asked = false;           // for groups, under this epoch
    int64_t highest_min_version = 0;  // of those calls
  };
  std::optional<LiveClaim> claim() const ABSL_LOCKS_EXCLUDED(mu_);  // none: free

 private:
  bool Held() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // While a run owns the server: OK for its owner alone.
  absl::Status CheckProof(const CallerProof& who) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Renew() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const SecondsClock clock_;
  const double default_lease_seconds_;

  mutable Mutex mu_;
  LiveClaim claim_ ABSL_GUARDED_BY(mu_);       // the last one; its run owns while Held()
  CallerProof claimant_ ABSL_GUARDED_BY(mu_);  // who made it
  double lease_seconds_ ABSL_GUARDED_BY(mu_) = 0;
  double lease_end_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace tandem::rollout
