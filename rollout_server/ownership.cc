#include "rollout_server/ownership.h"

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
  if (held && owner_ != run_id) return OwnedByAnother();
  if (held && epoch < epoch_) {
    return absl::InvalidArgumentError(
        absl::StrCat("epoch ", epoch, " of run '", run_id, "' is below the live epoch ", epoch_));
  }
  const bool is_new = !held || epoch != epoch_;
  owner_ = run_id;
  epoch_ = epoch;
  lease_seconds_ = lease_ms == 0 ? default_lease_seconds_ : static_cast<double>(lease_ms) / 1000;
  Renew();
  return is_new;
}

absl::Status Ownership::Release(const std::string& run_id) {
  MutexLock lock(&mu_);
  if (!Held()) return absl::OkStatus();
  if (owner_ != run_id) return OwnedByAnother();
  owner_.clear();
  return absl::OkStatus();
}

absl::Status Ownership::CheckOwner(const std::string& run_id) {
  MutexLock lock(&mu_);
  if (!Held()) {
    return absl::FailedPreconditionError(
        absl::StrCat("run '", run_id, "' does not own this server: call InitTransfer first"));
  }
  if (owner_ != run_id) return OwnedByAnother();
  Renew();
  return absl::OkStatus();
}

absl::Status Ownership::CheckEpoch(const std::string& run_id, int64_t epoch) {
  TANDEM_RETURN_IF_ERROR(CheckOwner(run_id));
  MutexLock lock(&mu_);
  if (epoch == epoch_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("epoch ", epoch, " is not the live epoch ", epoch_, " of run '", run_id, "'"));
}

absl::Status Ownership::CheckUser(const std::string& run_id) {
  MutexLock lock(&mu_);
  if (!Held() || run_id.empty()) return absl::OkStatus();
  if (owner_ != run_id) return OwnedByAnother();
  Renew();
  return absl::OkStatus();
}

std::string Ownership::owner() const {
  MutexLock lock(&mu_);
  return Held() ? owner_ : std::string();
}

bool Ownership::Held() const { return !owner_.empty() && clock_() < lease_end_; }

absl::Status Ownership::OwnedByAnother() const {
  return absl::FailedPreconditionError(absl::StrFormat(
      "run '%s' owns this server for another %.1f s unless it renews or releases it", owner_,
      lease_end_ - clock_()));
}

void Ownership::Renew() { lease_end_ = clock_() + lease_seconds_; }

}  // namespace tandem::rollout
