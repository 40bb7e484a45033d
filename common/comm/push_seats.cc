#include "common/comm/push_seats.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"

namespace tandem::comm {
namespace {

constexpr absl::Duration kPollSeats = absl::Milliseconds(5);
constexpr absl::Duration kLook = absl::Milliseconds(200);  // between two looks at called_off
// The protocol has two kinds of keys below seats/<group>: "seat/<rank>" is set by each server, and
// "go" by the trainer, to an empty text when all came and to the reason otherwise. "go" is written
// once and read by all, so either every member starts to connect or none does. That is the
// invariant this class exists for: neither c10d nor NCCL can cancel a member that already waits for
// the others to connect.
constexpr char kGo[] = "go";

std::string SeatOf(int rank) { return absl::StrCat("seat/", rank); }

}  // namespace

std::string PushGroupName(const std::string& run_id, int64_t epoch, int64_t membership) {
  return absl::StrCat("push/", run_id, "/", epoch, "/", membership);
}

PushSeats::PushSeats(const Store& store, const std::string& group_name)
    : store_(store.Under(absl::StrCat("seats/", group_name))) {}

absl::Status PushSeats::Take(int rank, absl::Duration deadline,
                             const std::atomic<bool>* called_off) const {
  TANDEM_RETURN_IF_ERROR(store_.Set(SeatOf(rank), ""));
  const absl::Time end = SteadyNow() + deadline;
  for (;;) {
    if (called_off != nullptr && called_off->load()) {
      return Cancelled("the seat is not wanted any more");
    }
    const absl::Duration left = std::max(absl::ZeroDuration(), end - SteadyNow());
    const auto go = store_.Get(kGo, std::min(left, kLook));
    if (go.ok()) return go->empty() ? absl::OkStatus() : Aborted(*go);
    if (!absl::IsDeadlineExceeded(go.status())) return go.status();
    if (left <= kLook) {
      return DeadlineExceeded("the trainer did not say within ", absl::FormatDuration(deadline),
                              " whether all members came");
    }
  }
}

absl::Status PushSeats::WaitForAll(int num_servers, absl::Duration deadline,
                                   const std::function<bool()>& hopeless) const {
  const absl::Time end = SteadyNow() + deadline;
  for (int rank = 1; rank <= num_servers; ++rank) {
    for (;;) {
      TANDEM_ASSIGN_OR_RETURN(const bool taken, store_.Has(SeatOf(rank)));
      if (taken) break;
      if (hopeless() || SteadyNow() >= end) {
        const std::string problem = absl::StrCat("the group was called off: rank ", rank, " of ",
                                                 num_servers, " servers did not come");
        TANDEM_RETURN_IF_ERROR(store_.Set(kGo, problem));
        return Aborted(problem);
      }
      absl::SleepFor(kPollSeats);
    }
  }
  return store_.Set(kGo, "");
}

}  // namespace tandem::comm
