// RollCall: what the members of a group are doing, as they say themselves, and which of them to
// blame when a collective fails.
//
// Every member writes a beat, the number of its last collective and whether it is inside, twice a
// second. Who asks reads all of them twice: a beat that stands still is a process that is dead,
// stopped or cut off; one that moves with a smaller number is a rank that lags. Who waits long in a
// collective is told so, and goes on waiting.
#ifndef TANDEM_COMMON_RENDEZVOUS_ROLL_CALL_H_
#define TANDEM_COMMON_RENDEZVOUS_ROLL_CALL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/rendezvous/store.h"

namespace tandem::comm {

inline constexpr absl::Duration kBeatTime = absl::Milliseconds(500);

// Whom a collective waits for, when it waits longer than `after`, and then after twice as long
// again and again: who lags or is silent. Called from a thread of the group's.
struct LagWarning {
  absl::Duration after = absl::Seconds(10);
  std::function<void(const std::string&)> warn;  // null: nobody is told
};

struct MemberState {
  bool known = false;  // has said anything at all
  int64_t beat = 0;
  int64_t sequence = 0;  // of the last collective it began
  bool inside = false;   // of that one
};

// The culprits among `second`, the states three beats or more after `first`, as seen from inside
// collective `sequence`: silent members, else those that lag. Empty: none.
std::string FindCulprits(const std::vector<std::string>& members,
                         const std::vector<MemberState>& first,
                         const std::vector<MemberState>& second, int self, int64_t sequence);

// The same as a sentence in any case.
//   "rank 2 (node-b:4711) is silent: dead, stopped or cut off; it was last in collective 11"
//   "rank 1 (node-a:12) lags: it is between collectives 10 and 11"
//   "all members are alive and in it, or past it"
std::string NameCulprits(const std::vector<std::string>& members,
                         const std::vector<MemberState>& first,
                         const std::vector<MemberState>& second, int self, int64_t sequence);

// Thread-safe.
class RollCall {
 public:
  // Under a prefix of the group. Starts the thread that writes, and that calls `lag.warn`.
  RollCall(Store store, std::vector<std::string> members, int self, LagWarning lag = {});
  ~RollCall();
  RollCall(const RollCall&) = delete;
  RollCall& operator=(const RollCall&) = delete;

  void Enter(int64_t sequence);
  void Leave();

  // Takes up to twelve seconds, whatever the others do. The first to ask settles it for all: a rank
  // that asks later gets the same sentence, since by then others have left in fright. Nobody leaves
  // before those who are alive have it, or five seconds.
  std::string Ask(int64_t sequence) const;

 private:
  struct State;  // shared with the threads: one that hangs in the store is left behind
  const std::shared_ptr<State> state_;
};

}  // namespace tandem::comm

#endif  // TANDEM_COMMON_RENDEZVOUS_ROLL_CALL_H_
