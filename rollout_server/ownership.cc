#include "rollout_server/ownership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"

namespace tandem::rollout {

Ownership::Ownership(SecondsClock clock, double default_lease_seconds)
    : clock_(std::move(clock)), default_lease_seconds_(default_lease_seconds) {}

absl::StatusOr<bool> Ownership::Claim(const std::string& run_id, int64_t epoch, int64_t lease_ms) {
  if (run_id.empty()) return absl::InvalidArgumentError("run_id is empty");
  if (run_id.size() > kMaxRunIdBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("run_id has ", run_id.size(), " bytes, at most ", kMaxRunIdBytes));
  }
  if (epoch < 1) {
    return absl::InvalidArgumentError(absl::StrCat("epoch is ", epoch, ", must be at least 1"));
  }
  if (lease_ms < 0) {
    return absl::InvalidArgumentError(absl::StrCat("lease_ms is ", lease_ms, ", must be >= 0"));
  }
  MutexLock lock(&mu_);
  const bool held = Held();
  if (held && claim_.run_id != run_id) return OwnedByAnother();
  if (held && epoch < claim_.epoch) {
    return absl::InvalidArgumentError(absl::StrCat("epoch ", epoch, " of run '", run_id,
                                                   "' is below the live epoch ", claim_.epoch));
  }
  const bool is_new = !held || epoch != claim_.epoch;
  if (is_new) claim_ = {.run_id = run_id, .epoch = epoch};
  lease_seconds_ = lease_ms == 0 ? default_lease_seconds_ : static_cast<double>(lease_ms) / 1000;
  Renew();
  return is_new;
}

absl::Status Ownership::Release(const std::string& run_id) {
  MutexLock lock(&mu_);
  if (!Held()) return absl::OkStatus();
  if (claim_.run_id != run_id) return OwnedByAnother();
  claim_.run_id.clear();
  return absl::OkStatus();
}

absl::Status Ownership::CheckOwner(const std::string& run_id) {
  MutexLock lock(&mu_);
  if (!Held()) {
    return absl::FailedPreconditionError(
        absl::StrCat("run '", run_id, "' does not own this server: call InitTransfer first"));
  }
  if (claim_.run_id != run_id) return OwnedByAnother();
  Renew();
  return absl::OkStatus();
}

absl::Status Ownership::CheckEpoch(const std::string& run_id, int64_t epoch) {
  TANDEM_RETURN_IF_ERROR(CheckOwner(run_id));
  MutexLock lock(&mu_);
  if (epoch == claim_.epoch) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("epoch ", epoch, " is not the live epoch ",
                                                    claim_.epoch, " of run '", run_id, "'"));
}

absl::Status Ownership::CheckUser(const std::string& run_id) {
  MutexLock lock(&mu_);
  if (!Held() || run_id.empty()) return absl::OkStatus();
  if (claim_.run_id != run_id) return OwnedByAnother();
  Renew();
  return absl::OkStatus();
}

std::string Ownership::owner() const {
  MutexLock lock(&mu_);
  return Held() ? claim_.run_id : std::string();
}

void Ownership::NoteAsked(const std::string& run_id, int64_t min_version) {
  MutexLock lock(&mu_);
  if (!Held() || run_id != claim_.run_id) return;
  claim_.has_asked = true;
  claim_.highest_min_version = std::max(claim_.highest_min_version, min_version);
}

std::optional<Ownership::LiveClaim> Ownership::claim() const {
  MutexLock lock(&mu_);
  if (!Held()) return std::nullopt;
  return claim_;
}

bool Ownership::Held() const { return !claim_.run_id.empty() && clock_() < lease_end_; }

absl::Status Ownership::OwnedByAnother() const {
  return absl::FailedPreconditionError(absl::StrFormat(
      "run '%s' owns this server for another %.1f s unless it renews or releases it", claim_.run_id,
      lease_end_ - clock_()));
}

void Ownership::Renew() { lease_end_ = clock_() + lease_seconds_; }

}  // namespace tandem::rollout
