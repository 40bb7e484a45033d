#include "rollout_server/push_seat.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem::rollout {
namespace {

absl::Status Check(const comm::PushSeatOffer& offer) {
  if (offer.rank < 1 || offer.rank >= static_cast<int>(offer.members.size())) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", offer.rank, " of a push group of ",
                                                   offer.members.size(), ": servers have 1 to ",
                                                   offer.members.size() - 1));
  }
  if (offer.store_host.empty() || offer.store_port < 1 || offer.store_port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("no store at '", offer.store_host, "' port ", offer.store_port));
  }
  if (offer.deadline <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("a push group without a deadline");
  }
  return absl::OkStatus();
}

// A bucket that is under way, or whose bytes are here.
struct Incoming {
  std::vector<std::byte> bytes;
  const Bucket* bucket = nullptr;
  comm::Pending pending{[] { return absl::OkStatus(); }};

  void Start(comm::PushMember& group, const Bucket& next) {
    bucket = &next;
    bytes.resize(static_cast<size_t>(next.num_bytes));
    pending = group.StartBroadcast(bytes);
  }
};

}  // namespace

absl::Status PushSeat::Join(const comm::PushSeatOffer& offer) {
  TANDEM_RETURN_IF_ERROR(Check(offer));
  Leave("another group is made");
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<comm::PushMember> member, comm::JoinPushGroup(offer));
  MutexLock lock(&mu_);
  member_ = std::move(member);
  membership_ = offer.membership;
  return absl::OkStatus();
}

std::shared_ptr<comm::PushMember> PushSeat::StartReceive(int64_t membership) {
  MutexLock lock(&mu_);
  if (membership != membership_ || member_ == nullptr) return nullptr;
  receiving_ = true;
  return member_;
}

absl::Status PushSeat::Receive(
    int64_t membership, const std::vector<Bucket>& buckets,
    const std::function<absl::Status(const BucketSlice&, std::span<const std::byte>)>& store) {
  const std::shared_ptr<comm::PushMember> group = StartReceive(membership);
  if (group == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("this server is not in push group ", membership, ": call JoinPushGroup"));
  }
  // While one bucket is stored the next one is under way.
  std::array<Incoming, 2> incoming;
  absl::Status received = absl::OkStatus(), stored = absl::OkStatus();
  if (!buckets.empty()) incoming[0].Start(*group, buckets[0]);
  for (size_t i = 0; i < buckets.size() && received.ok(); ++i) {
    Incoming& here = incoming[i % 2];
    received = here.pending.Wait();
    if (!received.ok()) break;
    if (i + 1 < buckets.size()) incoming[(i + 1) % 2].Start(*group, buckets[i + 1]);
    std::span<const std::byte> bytes = here.bytes;
    for (const BucketSlice& slice : here.bucket->slices) {
      const auto length = static_cast<size_t>(slice.length);
      if (stored.ok()) stored = store(slice, bytes.first(length));
      bytes = bytes.subspan(length);
    }
  }
  MutexLock lock(&mu_);
  receiving_ = false;
  if (received.ok()) return stored;
  if (member_ == group) member_.reset();
  return received;
}

void PushSeat::Abort(const std::string& reason) {
  std::shared_ptr<comm::PushMember> group;
  {
    MutexLock lock(&mu_);
    if (receiving_) group = std::exchange(member_, nullptr);
  }
  if (group != nullptr) group->Abort(reason);
}

void PushSeat::Leave(const std::string& reason) {
  Abort(reason);
  std::shared_ptr<comm::PushMember> group;  // ends without the lock
  MutexLock lock(&mu_);
  member_.swap(group);
}

}  // namespace tandem::rollout
