// PushSeats: how the members of a push group agree to make it. Each server says in the trainer's
// store that it is there; when all are, or one cannot come, the trainer says so; only then do they
// connect to each other, which nobody could call off.
#ifndef TANDEM_COMMON_COMM_PUSH_SEATS_H_
#define TANDEM_COMMON_COMM_PUSH_SEATS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/rendezvous/store.h"

namespace tandem::comm {

// "push/<run>/<epoch>/<membership>": no two groups have the same.
std::string PushGroupName(const std::string& run_id, int64_t epoch, int64_t membership);

class PushSeats {
 public:
  PushSeats(const Store& store, const std::string& group_name);

  // A server (rank 1, 2, ...). Waits for the trainer's word.
  //   ABORTED            it called the group off
  //   CANCELLED          `called_off` was set; null: nobody sets it
  //   DEADLINE_EXCEEDED  it said nothing
  //   UNAVAILABLE        the store is gone
  absl::Status Take(int rank, absl::Duration deadline,
                    const std::atomic<bool>* called_off = nullptr) const;

  // The trainer. Waits for `num_servers` servers, or until `hopeless` says that one does not come,
  // and gives the word.
  //   ABORTED      called off
  //   UNAVAILABLE  the store is gone
  absl::Status WaitForAll(int num_servers, absl::Duration deadline,
                          const std::function<bool()>& hopeless) const;

 private:
  const Store store_;
};

}  // namespace tandem::comm

#endif  // TANDEM_COMMON_COMM_PUSH_SEATS_H_
