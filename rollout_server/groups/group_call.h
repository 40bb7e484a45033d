// GroupCall: everything one group has given so far, for one or more callers. GroupRegistry appends;
// each caller reads at its own pace with a cursor, so a caller that joins late gets all of it
// again.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "rollout_server/engine/schedule/group.h"

namespace tandem::rollout {

struct GroupSummary {
  int32_t num_completions = 0;
  int32_t num_prompt_tokens_cached = 0;
  double queue_ms = 0;    // from arrival to admission
  double prefill_ms = 0;  // from admission to the first token
  double decode_ms = 0;   // from the first token to the last
  bool incomplete = false;
};

// One caller of a group.
class GroupListener {
 public:
  virtual ~GroupListener() = default;

  // GroupCall::Next has something new. Called without a lock held, on any thread.
  virtual void OnProgress() = 0;
};

using CompletionPtr = std::shared_ptr<const FinishedCompletion>;

class GroupCall {
 public:
  struct Nothing {};  // wait for OnProgress
  using Item = std::variant<Nothing, CompletionPtr, GroupSummary, absl::Status>;

  // The item after the first `*cursor` completions; advances the cursor past a completion. A
  // summary or an error is the last item.
  Item Next(size_t* cursor) const ABSL_LOCKS_EXCLUDED(mu_);

  // The same for a caller that wants nothing before the group is whole; completions then come by
  // index.
  Item NextWhenWhole(size_t* cursor) const ABSL_LOCKS_EXCLUDED(mu_);

  void Append(CompletionPtr completion) ABSL_LOCKS_EXCLUDED(mu_);
  void End(GroupSummary summary) ABSL_LOCKS_EXCLUDED(mu_);
  void End(absl::Status error) ABSL_LOCKS_EXCLUDED(mu_);  // a second End is ignored

  void AddListener(std::shared_ptr<GroupListener> listener) ABSL_LOCKS_EXCLUDED(mu_);

  // True when this was the last one.
  bool RemoveListener(const GroupListener* listener) ABSL_LOCKS_EXCLUDED(mu_);

  std::vector<std::shared_ptr<GroupListener>> listeners() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable Mutex mu_;
  std::vector<CompletionPtr> completions_ ABSL_GUARDED_BY(mu_);
  std::optional<GroupSummary> summary_ ABSL_GUARDED_BY(mu_);
  absl::Status error_ ABSL_GUARDED_BY(mu_);
  // Shared with the RPC that listens: either side may let go last.
  std::vector<std::shared_ptr<GroupListener>> listeners_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tandem::rollout
