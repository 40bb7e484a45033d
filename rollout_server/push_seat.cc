#include "rollout_server/push_seat.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/comm/group.h"
#include "common/comm/push_seats.h"
#include "common/comm/store.h"

namespace tandem::rollout {
namespace {

absl::Status Check(const SeatOffer& seat) {
  if (seat.rank < 1 || seat.rank >= static_cast<int>(seat.members.size())) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", seat.rank, " of a push group of ",
                                                   seat.members.size(), ": servers have 1 to ",
                                                   seat.members.size() - 1));
  }
  if (seat.store_host.empty() || seat.store_port < 1 || seat.store_port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("no store at '", seat.store_host, "' port ", seat.store_port));
  }
  if (seat.deadline <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("a push group without a deadline");
  }
  return absl::OkStatus();
}

// A bucket that is under way, or whose bytes are here.
struct Incoming {
  std::vector<std::byte> bytes;
  const Bucket* bucket = nullptr;
  comm::Pending pending{[] { return absl::OkStatus(); }};

  void Start(comm::Collective& group, const Bucket& next) {
    bucket = &next;
    bytes.resize(static_cast<size_t>(next.num_bytes));
    pending = comm::StartBroadcastBytes(group, bytes, /*root=*/0);
  }
};

}  // namespace

absl::Status PushSeat::Join(const SeatOffer& seat) {
  TANDEM_RETURN_IF_ERROR(Check(seat));
  {
    MutexLock lock(&mu_);
    group_.reset();
  }
  auto store = comm::Store::Connect(seat.store_host, seat.store_port, seat.deadline);
  if (!store.ok()) return absl::UnavailableError(store.status().message());
  const std::string name = comm::PushGroupName(seat.run_id, seat.epoch, seat.membership);
  TANDEM_RETURN_IF_ERROR(comm::PushSeats(*store, name).Take(seat.rank, seat.deadline));
  TANDEM_ASSIGN_OR_RETURN(
      std::shared_ptr<comm::Collective> group,
      comm::JoinGroup(comm::Backend::kGloo, *store,
                      {name, seat.rank, seat.members, seat.deadline}));
  MutexLock lock(&mu_);
  group_ = std::move(group);
  membership_ = seat.membership;
  return absl::OkStatus();
}

std::shared_ptr<comm::Collective> PushSeat::StartReceive(int64_t membership) {
  MutexLock lock(&mu_);
  if (membership != membership_ || group_ == nullptr) return nullptr;
  receiving_ = true;
  return group_;
}

absl::Status PushSeat::Receive(
    int64_t membership, const std::vector<Bucket>& buckets,
    const std::function<absl::Status(const BucketSlice&, std::span<const std::byte>)>& store) {
  const std::shared_ptr<comm::Collective> group = StartReceive(membership);
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
  if (group_ == group) group_.reset();
  return received;
}

void PushSeat::Abort(const std::string& reason) {
  std::shared_ptr<comm::Collective> group;
  {
    MutexLock lock(&mu_);
    if (receiving_) group = std::exchange(group_, nullptr);
  }
  if (group != nullptr) comm::AbortGroup(*group, reason);
}

void PushSeat::Leave(const std::string& reason) {
  Abort(reason);
  std::shared_ptr<comm::Collective> group;  // ends without the lock
  MutexLock lock(&mu_);
  group_.swap(group);
}

}  // namespace tandem::rollout
