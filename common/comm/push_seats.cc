#include "common/comm/push_seats.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/comm/steady_time.h"

namespace tandem::comm {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(5);
constexpr char kGo[] = "go";

std::string SeatOf(int rank) { return absl::StrCat("seat/", rank); }

}  // namespace

std::string PushGroupName(const std::string& run_id, int64_t epoch, int64_t membership) {
  return absl::StrCat("push/", run_id, "/", epoch, "/", membership);
}

PushSeats::PushSeats(const Store& store, const std::string& group_name)
    : store_(store.Under(absl::StrCat("seats/", group_name))) {}

absl::Status PushSeats::Take(int rank, absl::Duration deadline) const {
  TANDEM_RETURN_IF_ERROR(store_.Set(SeatOf(rank), ""));
  TANDEM_ASSIGN_OR_RETURN(const std::string problem, store_.Get(kGo, deadline));
  return problem.empty() ? absl::OkStatus() : absl::AbortedError(problem);
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
        return absl::AbortedError(problem);
      }
      absl::SleepFor(kPoll);
    }
  }
  return store_.Set(kGo, "");
}

}  // namespace tandem::comm
