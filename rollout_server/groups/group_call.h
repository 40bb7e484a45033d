// One group at this server, from the call that submits it to the report of how it went:
// GroupSubmission, GroupCall and GroupReport.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/observe/tracer.h"
#include "rollout_server/engine/schedule/group.h"
#include "rollout_server/groups/admission_batches.h"

namespace tandem::rollout {

// One call for a group, as RolloutService hands it to GroupRegistry.
struct GroupSubmission {
  std::string run_id;  // empty: from a client without ownership, whose groups are not remembered
  // ScopeOf the caller (ownership.h). Two callers never share a group, whatever run and number they
  // name.
  std::string caller;
  // From a client without ownership, while a run owns the server: all such groups together get half
  // of the queue and of memory_bytes.
  bool yields = false;
  bool unowned = false;  // nobody owned the server when it was let in
  int64_t group_id = 0;
  std::string fingerprint;  // equal for equal requests
  GroupRequest request;     // GroupRegistry sets its key
  std::optional<AdmissionBatches::BatchRef> batch;
  double seconds_left = std::numeric_limits<double>::infinity();  // until the caller's deadline
  TraceContext trace;              // the caller's span; none: not traced
  int64_t min_weight_version = 0;  // no token may be from older weights
  int64_t live_version = 0;        // no token of a group that starts from now on is older
};

// How one group went, for its callers, metrics and spans.
struct GroupReport {
  int64_t group_id = 0;
  TraceContext trace;  // of the first call for it; may be none
  // Seconds on the registry's clock: when the call came, when the engine admitted it, and when its
  // first and its last token were sampled.
  double arrived = 0, started = 0, decoding = 0, ended = 0;
  int64_t num_completions = 0;
  int32_t num_prompt_tokens_cached = 0;
  bool incomplete = false;
  int64_t num_tokens = 0, longest_tokens = 0;  // in all completions, in the longest
  int64_t num_spanning_tokens = 0;  // in completions that more than one weight version sampled
};

// Mean time between two tokens of the longest completion; 0 for one of a single token.
inline double SecondsBetweenTokens(const GroupReport& report) {
  if (report.longest_tokens < 2) return 0;
  return (report.ended - report.decoding) / static_cast<double>(report.longest_tokens - 1);
}

// Records "generate_group" with its children "queue", "prefill" and "decode". `ended_unix_ns` is
// the moment report.ended.
void RecordSpans(const GroupReport& report, int64_t ended_unix_ns, Tracer* tracer);

// One caller of a group.
class GroupListener {
 public:
  virtual ~GroupListener() = default;

  // GroupCall::Next has something new. Called without a lock held, on any thread.
  virtual void OnProgress() = 0;
};

using CompletionPtr = std::shared_ptr<const FinishedCompletion>;
using TurnPtr = std::shared_ptr<const FinishedTurn>;
using DrawnPtr = std::shared_ptr<const DrawnTokens>;

// Everything one group has given so far, for one or more callers. GroupRegistry appends; each
// caller reads at its own pace with a cursor, so a caller that joins late gets all of it again.
//
// Thread-safe.
class GroupCall {
 public:
  struct Nothing {};  // wait for OnProgress
  using Part = std::variant<CompletionPtr, TurnPtr, DrawnPtr>;
  using Item = std::variant<Nothing, CompletionPtr, TurnPtr, DrawnPtr, GroupReport, absl::Status>;

  // The item after the first `*cursor` parts; advances the cursor past one. A
  // report or an error is the last item.
  Item Next(size_t* cursor) const ABSL_LOCKS_EXCLUDED(mu_);

  // The same for a caller that wants nothing before the group is whole; completions then come by
  // index. For groups of one turn without stream_interval.
  Item NextWhenWhole(size_t* cursor) const ABSL_LOCKS_EXCLUDED(mu_);

  void Append(Part part) ABSL_LOCKS_EXCLUDED(mu_);
  void End(GroupReport report) ABSL_LOCKS_EXCLUDED(mu_);
  void End(absl::Status error) ABSL_LOCKS_EXCLUDED(mu_);  // a second End is ignored

  void AddListener(std::shared_ptr<GroupListener> listener) ABSL_LOCKS_EXCLUDED(mu_);

  // True when this was the last one.
  bool RemoveListener(const GroupListener* listener) ABSL_LOCKS_EXCLUDED(mu_);

  std::vector<std::shared_ptr<GroupListener>> listeners() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable Mutex mu_;
  std::vector<Part> parts_ ABSL_GUARDED_BY(mu_);
  std::optional<GroupReport> report_ ABSL_GUARDED_BY(mu_);
  absl::Status error_ ABSL_GUARDED_BY(mu_);
  // Shared with the RPC that listens: either side may let go last.
  std::vector<std::shared_ptr<GroupListener>> listeners_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tandem::rollout
