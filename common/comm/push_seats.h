// PushSeats: the agreement of a push group's members to connect. Each server announces itself in
// the trainer's store. When all servers have done so, or one cannot come, the trainer writes its
// decision. Members connect to each other only after that decision, because connecting cannot be
// cancelled.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/rendezvous/store.h"

namespace tandem::comm {

// "push/<run>/<epoch>/<membership>", a name that no other group has.
std::string PushGroupName(const std::string& run_id, int64_t epoch, int64_t membership);

class PushSeats {
 public:
  PushSeats(const Store& store, const std::string& group_name);

  // Called by a server (rank 1, 2, ...). Waits for the trainer's decision.
  //   ABORTED            the trainer cancelled the group
  //   CANCELLED          `called_off` was set (null: nobody sets it)
  //   DEADLINE_EXCEEDED  the trainer decided nothing
  //   UNAVAILABLE        the store is gone
  absl::Status Take(int rank, absl::Duration deadline,
                    const std::atomic<bool>* called_off = nullptr) const;

  // Called by the trainer. Waits for `num_servers` servers, or until `hopeless` returns true
  // because one of them cannot come, and writes the decision.
  //   ABORTED      the group was cancelled
  //   UNAVAILABLE  the store is gone
  absl::Status WaitForAll(int num_servers, absl::Duration deadline,
                          const std::function<bool()>& hopeless) const;

 private:
  const Store store_;
};

}  // namespace tandem::comm
