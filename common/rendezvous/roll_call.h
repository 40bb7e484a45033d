// RollCall: heartbeats of the members of a group, used to name the members at fault when a
// collective fails.
//
// Twice a second, every member writes a record to the store: a counter (its beat), the number of
// its last collective, and whether it is inside it. To find the culprits, a member reads all
// records twice. A beat that has not moved belongs to a process that is dead, stopped or cut off. A
// beat that moved, with a smaller collective number, belongs to a member that lags. A member that
// waits long inside a collective gets a warning, and keeps waiting.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/rendezvous/store.h"

namespace tandem::comm {

inline constexpr absl::Duration kBeatTime = absl::Milliseconds(500);

// Warns about members that lag or are silent, when a collective has waited longer than `after`, and
// then each time the wait has doubled. `warn` is called from a thread of the group.
struct LagWarning {
  absl::Duration after = absl::Seconds(10);
  std::function<void(const std::string&)> warn;  // null: no warnings
};

struct MemberState {
  bool known = false;  // has written a record
  int64_t beat = 0;
  int64_t sequence = 0;  // number of the last collective it entered
  bool inside = false;   // it has not left that collective
};

// The culprits in the view of `self`, inside collective `sequence`: members that are silent between
// the two readings `first` and `second`, which are at least three beats apart, or else members that
// lag. Empty if there are none.
std::string FindCulprits(const std::vector<std::string>& members,
                         const std::vector<MemberState>& first,
                         const std::vector<MemberState>& second, int self, int64_t sequence);

// The same, as a sentence that is never empty:
//   "rank 2 (node-b:4711) is silent: dead, stopped or cut off; it was last in collective 11"
//   "rank 1 (node-a:12) lags: it is between collectives 10 and 11"
//   "all members are alive and in it, or past it"
std::string NameCulprits(const std::vector<std::string>& members,
                         const std::vector<MemberState>& first,
                         const std::vector<MemberState>& second, int self, int64_t sequence);

// Thread-safe.
class RollCall {
 public:
  // `store` is below a prefix of the group. Starts the thread that writes the heartbeat and calls
  // `lag.warn`.
  RollCall(Store store, std::vector<std::string> members, int self, LagWarning lag = {});
  ~RollCall();
  RollCall(const RollCall&) = delete;
  RollCall& operator=(const RollCall&) = delete;

  // Publishes, with the next beat, that this member is inside collective `sequence`, or has left
  // it.
  void Enter(int64_t sequence);
  void Leave();

  // Names the culprits of a failure in collective `sequence`. Takes up to twelve seconds, whatever
  // the others do. The first member to ask decides for all, and later ones get the same sentence:
  // by the time they ask, other members may already have failed and gone silent. Returns when all
  // live members have read the sentence, or after five seconds.
  std::string Ask(int64_t sequence) const;

 private:
  struct State;  // shared with the threads, which may outlive this object
  const std::shared_ptr<State> state_;
};

}  // namespace tandem::comm
