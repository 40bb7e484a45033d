#include "rollout_server/groups/ownership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/printable.h"
#include "common/base/status_macros.h"
#include "common/rpc/caller_secret.h"

namespace tandem::rollout {
namespace {

absl::Status CheckSecret(const std::string& secret) {
  if (secret.empty()) {
    return InvalidArgument("a claim must show a secret that its run alone knows, in metadata '",
                           rpc::kCallerSecretKey,
                           "': the calls that follow are told from those of others by it");
  }
  if (secret.size() < rpc::kMinCallerSecretBytes || secret.size() > rpc::kMaxCallerSecretBytes) {
    return InvalidArgument("the secret in metadata '", rpc::kCallerSecretKey, "' has ",
                           secret.size(), " bytes, must have ", rpc::kMinCallerSecretBytes, " to ",
                           rpc::kMaxCallerSecretBytes);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckRunId(const std::string& run_id) {
  if (run_id.size() > kMaxRunIdBytes) {
    return InvalidArgument("run_id has ", run_id.size(), " bytes, at most ", kMaxRunIdBytes);
  }
  if (Printable(run_id) != run_id) {
    return InvalidArgument("run_id has control characters");
  }
  return absl::OkStatus();
}

std::string ScopeOf(const CallerProof& who) {
  if (who.certificate.empty() && who.secret.empty()) return "";
  return rpc::KeyedDigest(who.secret, who.certificate);
}

Ownership::Ownership(SecondsClock clock, double default_lease_seconds)
    : clock_(std::move(clock)), default_lease_seconds_(default_lease_seconds) {}

absl::StatusOr<bool> Ownership::Claim(const CallerProof& who, int64_t epoch, int64_t lease_ms) {
  if (who.run_id.empty()) return InvalidArgument("run_id is empty");
  TANDEM_RETURN_IF_ERROR(CheckRunId(who.run_id));
  TANDEM_RETURN_IF_ERROR(CheckSecret(who.secret));
  if (epoch < 1) {
    return InvalidArgument("epoch is ", epoch, ", must be at least 1");
  }
  const auto max_lease_ms = static_cast<int64_t>(kMaxLeaseSeconds * 1000);
  if (lease_ms < 0 || lease_ms > max_lease_ms) {
    return InvalidArgument("lease_ms is ", lease_ms, ", must be in [0, ", max_lease_ms, "]");
  }
  MutexLock lock(&mu_);
  const bool held = Held();
  if (held) TANDEM_RETURN_IF_ERROR(CheckProof(who));
  if (held && epoch < claim_.epoch) {
    return InvalidArgument("epoch ", epoch, " of run '", who.run_id, "' is below the live epoch ",
                           claim_.epoch);
  }
  const bool is_new = !held || epoch != claim_.epoch;
  if (is_new) claim_ = {.run_id = who.run_id, .caller = ScopeOf(who), .epoch = epoch};
  claimant_ = who;
  lease_seconds_ = lease_ms == 0 ? default_lease_seconds_ : static_cast<double>(lease_ms) / 1000;
  Renew();
  return is_new;
}

absl::Status Ownership::Release(const CallerProof& who) {
  MutexLock lock(&mu_);
  if (!Held()) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(CheckProof(who));
  claim_.run_id.clear();
  return absl::OkStatus();
}

absl::Status Ownership::CheckOwner(const CallerProof& who) {
  MutexLock lock(&mu_);
  if (!Held()) {
    return FailedPrecondition("run '", who.run_id,
                              "' does not own this server: call InitTransfer first");
  }
  TANDEM_RETURN_IF_ERROR(CheckProof(who));
  Renew();
  return absl::OkStatus();
}

absl::Status Ownership::CheckEpoch(const CallerProof& who, int64_t epoch) {
  TANDEM_RETURN_IF_ERROR(CheckOwner(who));
  MutexLock lock(&mu_);
  if (epoch == claim_.epoch) return absl::OkStatus();
  return FailedPrecondition("epoch ", epoch, " is not the live epoch ", claim_.epoch, " of run '",
                            who.run_id, "'");
}

absl::StatusOr<Standing> Ownership::CheckUser(const CallerProof& who) {
  MutexLock lock(&mu_);
  if (!Held()) return Standing::kUnowned;
  if (who.run_id.empty()) return Standing::kNotOwner;
  TANDEM_RETURN_IF_ERROR(CheckProof(who));
  Renew();
  return Standing::kOwner;
}

std::string Ownership::owner() const {
  MutexLock lock(&mu_);
  return Held() ? claim_.run_id : std::string();
}

void Ownership::NoteAsked(const CallerProof& who, int64_t min_version) {
  MutexLock lock(&mu_);
  if (!Held() || !CheckProof(who).ok()) return;
  claim_.has_asked = true;
  claim_.highest_min_version = std::max(claim_.highest_min_version, min_version);
}

std::optional<Ownership::LiveClaim> Ownership::claim() const {
  MutexLock lock(&mu_);
  if (!Held()) return std::nullopt;
  return claim_;
}

bool Ownership::Held() const { return !claim_.run_id.empty() && clock_() < lease_end_; }

absl::Status Ownership::CheckProof(const CallerProof& who) const {
  const double left = lease_end_ - clock_();
  if (who.run_id != claim_.run_id) {
    return FailedPrecondition(absl::StrFormat(
        "run '%s' owns this server for another %.1f s unless it renews or releases it",
        claim_.run_id, left));
  }
  const char* differs = nullptr;
  if (who.certificate != claimant_.certificate) {
    differs = "comes with another certificate than the one";
  } else if (!rpc::SecretsMatch(who.secret, claimant_.secret)) {
    differs = "does not show the secret";
  }
  if (differs == nullptr) return absl::OkStatus();
  return PermissionDenied(absl::StrFormat(
      "run '%s' owns this server for another %.1f s unless it renews or releases it, and this call "
      "%s that it was claimed with; clients without ownership leave run_id empty",
      claim_.run_id, left, differs));
}

void Ownership::Renew() { lease_end_ = clock_() + lease_seconds_; }

}  // namespace tandem::rollout
