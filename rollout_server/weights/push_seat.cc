#include "rollout_server/weights/push_seat.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "common/base/status_macros.h"

namespace tandem::rollout {
namespace {

// How long a Join that was called off waits for its thread to end.
constexpr std::chrono::seconds kGoodbye(2);

constexpr std::string_view kHostMarks = ".-_:%[]";  // beside letters and digits

absl::Status Check(const comm::PushSeatOffer& offer) {
  if (offer.rank < 1 || offer.rank >= static_cast<int>(offer.members.size())) {
    return InvalidArgument("rank ", offer.rank, " of a push group of ", offer.members.size(),
                           ": servers have 1 to ", offer.members.size() - 1);
  }
  // The collective library writes the host to the log unchanged.
  if (!std::ranges::all_of(offer.store_host, [](unsigned char c) {
        return absl::ascii_isalnum(c) ||
               kHostMarks.find(static_cast<char>(c)) != std::string_view::npos;
      })) {
    return InvalidArgument(
        "store_host is neither a host name nor an address: want letters, digits and .-_:%[]");
  }
  if (offer.store_host.empty() || offer.store_port < 1 || offer.store_port > 65535) {
    return InvalidArgument("no store at '", offer.store_host, "' port ", offer.store_port);
  }
  if (offer.deadline <= absl::ZeroDuration()) {
    return InvalidArgument("a push group without a deadline");
  }
  return absl::OkStatus();
}

// A bucket that is being received or has been received.
struct Incoming {
  std::span<std::byte> bytes;
  const Bucket* bucket = nullptr;
  comm::Pending pending{[] { return absl::OkStatus(); }};

  absl::Status Start(comm::PushMember& group, BucketStore& store, size_t index,
                     const Bucket& next) {
    bucket = &next;
    TANDEM_ASSIGN_OR_RETURN(bytes, store.Buffer(index, next.num_bytes));
    pending = group.StartBroadcast(bytes, store.memory());
    return absl::OkStatus();
  }
};

}  // namespace

// Shared by the caller of Join, whoever calls it off, and the thread that waits for the other
// members; any of them may hold the last reference.
struct PushSeat::Joining {
  const std::shared_ptr<std::atomic<bool>> called_off = std::make_shared<std::atomic<bool>>(false);
  Mutex mu;
  CondVar changed;
  std::string why_called_off ABSL_GUARDED_BY(mu);
  bool ended ABSL_GUARDED_BY(mu) = false;
  absl::StatusOr<std::shared_ptr<comm::PushMember>> member ABSL_GUARDED_BY(mu) = Unknown("");
};

absl::StatusOr<std::shared_ptr<comm::PushMember>> PushSeat::JoinUnlessCalledOff(
    comm::PushSeatOffer offer, const std::shared_ptr<Joining>& joining) {
  offer.called_off = joining->called_off;
  {
    MutexLock lock(&joining->mu);
    if (joining->called_off->load()) return Aborted(joining->why_called_off);
  }
  std::thread([joining, offer] {
    absl::StatusOr<std::shared_ptr<comm::PushMember>> member = comm::JoinPushGroup(offer);
    MutexLock lock(&joining->mu);
    joining->ended = true;
    // When it was called off meanwhile, nobody takes the seat, and the group sees a lost member.
    if (!joining->called_off->load()) joining->member = std::move(member);
    joining->changed.NotifyAll();
  }).detach();
  MutexLock lock(&joining->mu);
  while (!joining->ended && !joining->called_off->load()) joining->changed.Wait(&joining->mu);
  // The thread checks called_off several times a second. One that hangs in the store is left
  // behind.
  const auto until = std::chrono::steady_clock::now() + kGoodbye;
  while (!joining->ended && joining->changed.WaitUntil(&joining->mu, until)) {
  }
  if (joining->called_off->load()) return Aborted(joining->why_called_off);
  return std::move(joining->member);
}

absl::Status PushSeat::Join(const comm::PushSeatOffer& offer,
                            const std::function<absl::Status()>& still_offered) {
  TANDEM_RETURN_IF_ERROR(Check(offer));
  Leave("another group is made");
  const auto joining = std::make_shared<Joining>();
  {
    MutexLock lock(&mu_);
    TANDEM_RETURN_IF_ERROR(closed_);
    joining_ = joining;
  }
  const absl::Status offered = still_offered();
  auto member = offered.ok() ? JoinUnlessCalledOff(offer, joining) : offered;
  MutexLock lock(&mu_);
  joining_ = nullptr;
  TANDEM_RETURN_IF_ERROR(member.status());
  if (joining->called_off->load()) return Aborted("the group was left");
  member_ = *std::move(member);
  membership_ = offer.membership;
  return absl::OkStatus();
}

absl::Status PushSeat::Receive(int64_t membership, const std::vector<Bucket>& buckets,
                               BucketStore& store) {
  std::shared_ptr<comm::PushMember> group;
  {
    MutexLock lock(&mu_);
    if (membership != membership_ || member_ == nullptr) {
      return FailedPrecondition("this server is not in push group ", membership,
                                ": call JoinPushGroup");
    }
    receiving_ = true;
    group = member_;
  }
  // While one bucket is stored, the next one is received.
  std::array<Incoming, 2> incoming;
  absl::Status received = absl::OkStatus(), stored = absl::OkStatus();
  if (!buckets.empty()) received = incoming[0].Start(*group, store, 0, buckets[0]);
  for (size_t i = 0; i < buckets.size() && received.ok(); ++i) {
    Incoming& here = incoming[i % 2];
    received = here.pending.Wait();
    if (!received.ok()) break;
    const size_t next = (i + 1) % 2;
    if (i + 1 < buckets.size()) {
      received = incoming[next].Start(*group, store, next, buckets[i + 1]);
    }
    std::span<const std::byte> bytes = here.bytes;
    for (const BucketSlice& slice : here.bucket->slices) {
      const auto length = static_cast<size_t>(slice.length);
      if (stored.ok()) stored = store.Store(slice, bytes.first(length));
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
  std::shared_ptr<comm::PushMember> group;  // destroyed without the lock
  MutexLock lock(&mu_);
  member_.swap(group);
  if (joining_ == nullptr) return;
  MutexLock joining(&joining_->mu);
  joining_->why_called_off = reason;
  joining_->called_off->store(true);
  joining_->changed.NotifyAll();
}

void PushSeat::Close(const std::string& reason) {
  {
    MutexLock lock(&mu_);
    closed_ = Aborted(reason);
  }
  Leave(reason);
}

}  // namespace tandem::rollout
