// GroupRegistry: the groups this server works on, by (run, group_id). A repeated call joins the
// running group. A finished group is remembered for a while, for callers who lost the reply. When
// the last caller leaves, the group's sequences are freed (stage 2-3).
//
// RolloutService joins and leaves; EngineThread reports. Thread-safe. Neither the engine nor a
// listener is called with a lock held, since both may call back at once. What was decided under the
// lock is therefore queued as orders, which SendAndTell sends without it and in the same order.
//
// Memory: `memory_bytes` bounds what groups hold beside the KV cache (byte_meter.h). When it is
// full, finished groups are forgotten first, and then new groups are refused. When running groups
// outgrow it, groups of clients without ownership are ended first, and then the youngest.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "rollout_server/engine/schedule/byte_meter.h"
#include "rollout_server/engine/schedule/group.h"
#include "rollout_server/groups/admission_batches.h"
#include "rollout_server/groups/group_call.h"
#include "rollout_server/groups/remembered_groups.h"
#include "rollout_server/groups/start_pace.h"

namespace tandem::rollout {

class GroupRegistry {
 public:
  struct Limits {
    int64_t max_queued_groups = 256;
    int64_t remembered_groups = 256;
    int64_t memory_bytes = int64_t{2} << 30;
  };

  // How groups reach the engine. All of these only queue and return at once; an engine that has
  // stopped may answer inline, through OnRejected.
  struct Runner {
    std::function<void(std::vector<GroupRequest>)> submit;
    std::function<void(GroupKey)> abort;
    std::function<void(GroupKey)> stop_early;
    std::function<void(std::vector<GroupKey>)> put_last = {};  // of waiting groups
  };
  // Called for each finished group, on the engine's thread, without a lock held. May be null.
  using OnFinished = std::function<void(const GroupReport&)>;
  GroupRegistry(Runner runner, Limits limits, SecondsClock clock, OnFinished on_finished = {});

  // Starts or joins the group. `listener` is told of progress from now on, and should look at once.
  // A refusal that waiting may end has a name (common/rpc/refusal.h, IsBusy): try again after
  // retry_after_ms().
  //   UNAVAILABLE         the server is draining
  //   RESOURCE_EXHAUSTED  QUEUE_FULL: max_queued_groups wait already; DEADLINE_BEFORE_START: by the
  //                       recent pace the groups before it start after its deadline; MEMORY_FULL:
  //                       other groups hold memory_bytes
  //   INVALID_ARGUMENT    the group_id is known with another request; an admission batch malformed
  //                       or larger than the queue; TOO_LARGE: the request is over memory_bytes
  absl::StatusOr<std::shared_ptr<GroupCall>> Join(GroupSubmission submission,
                                                  std::shared_ptr<GroupListener> listener)
      ABSL_LOCKS_EXCLUDED(mu_);

  // The caller is gone. Frees an unfinished group when its last caller leaves, and returns true
  // then.
  bool Leave(const std::shared_ptr<GroupCall>& call, const GroupListener* listener)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Ends a group of `caller` with ABORTED. False when it has none of this number in flight.
  bool Abort(const std::string& run_id, int64_t group_id, const std::string& caller = "")
      ABSL_LOCKS_EXCLUDED(mu_);

  // Ends a running group with what it has drawn, a waiting one with ABORTED. False as Abort.
  bool StopEarly(const std::string& run_id, int64_t group_id, const std::string& caller = "")
      ABSL_LOCKS_EXCLUDED(mu_);

  // Ends every group with `error`. After FailAll, later Joins fail with it too.
  void AbortAll(const absl::Status& error) ABSL_LOCKS_EXCLUDED(mu_);
  void FailAll(const absl::Status& error) ABSL_LOCKS_EXCLUDED(mu_);

  // The run starts over, with the same numbers: forgets its finished groups and the batches of
  // `caller` in it, and ends what its batches hold back with ABORTED.
  void Forget(const std::string& run_id, const std::string& caller = "") ABSL_LOCKS_EXCLUDED(mu_);

  // A run has claimed the server: all other groups count as those of clients without ownership from
  // now on. The youngest waiting ones beyond their half end with RESOURCE_EXHAUSTED, QUEUE_FULL.
  void PutOthersBehind(const std::string& run_id, const std::string& caller)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Refuses new groups from now on; joining known ones still works. Groups that a batch holds back
  // end with UNAVAILABLE, as the rest of the batch cannot come any more.
  void StartDrain() ABSL_LOCKS_EXCLUDED(mu_);

  // False when groups are left at the deadline.
  bool WaitUntilIdle(std::chrono::steady_clock::time_point deadline) ABSL_LOCKS_EXCLUDED(mu_);

  // EngineThread's callbacks.
  void OnEvents(std::vector<EngineEvent> events) ABSL_LOCKS_EXCLUDED(mu_);
  void OnRejected(GroupKey key, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  void OnResumed() ABSL_LOCKS_EXCLUDED(mu_);  // it was paused until now
  // After each step: ends groups while they hold more than memory_bytes, those of clients without
  // ownership and the youngest first, with RESOURCE_EXHAUSTED: TOO_LARGE for a group that alone
  // outgrew its share, else MEMORY_FULL.
  void KeepWithinMemory() ABSL_LOCKS_EXCLUDED(mu_);

  const std::shared_ptr<ByteMeter>& memory() const { return memory_; }  // what groups hold

  // The name of a group in flight, and the key of one of `caller`; none once it has ended.
  std::optional<GroupName> FindName(GroupKey key) const ABSL_LOCKS_EXCLUDED(mu_);
  std::optional<GroupKey> FindKey(const std::string& run_id, int64_t group_id,
                                  const std::string& caller) const ABSL_LOCKS_EXCLUDED(mu_);

  struct Counts {
    int64_t queued = 0;  // held back or waiting for the engine
    int64_t running = 0;
  };
  Counts counts() const ABSL_LOCKS_EXCLUDED(mu_);
  // When a place in the queue should be free: the recent time between two starts of waiting groups.
  int64_t retry_after_ms() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  enum class Phase { kHeld, kQueued, kRunning };
  struct Entry {
    GroupName name;
    std::string fingerprint;
    std::optional<AdmissionBatches::BatchRef> batch;
    std::shared_ptr<GroupCall> call;
    Phase phase = Phase::kQueued;
    int32_t priority = 0;
    GroupReport report;        // so far
    int64_t live_version = 0;  // at its last call while it waited: no token is older
    int64_t drawn_from = std::numeric_limits<int64_t>::max();  // the oldest version of its tokens
    std::shared_ptr<ByteMeter> memory;                         // of this group
    bool yields = false;
  };
  using Listeners = std::vector<std::shared_ptr<GroupListener>>;

  std::optional<GroupKey> FindInFlight(const std::string& run_id, int64_t group_id,
                                       const std::string& caller) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<std::shared_ptr<GroupCall>> JoinOrStart(
      GroupSubmission submission, const std::shared_ptr<GroupListener>& listener, Listeners* told)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::shared_ptr<GroupCall>> FindKnown(const GroupName& name,
                                                       const GroupSubmission& submission,
                                                       Listeners* told)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckLimits(const GroupSubmission& submission) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckMemory(const GroupSubmission& submission) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int64_t EndYoungest(bool only_others, int64_t bytes, Listeners* told)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SubmitReleased(std::vector<GroupRequest> groups) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndNow(GroupKey key, const absl::Status& error, Listeners* told)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndHeld(const std::optional<std::string>& run_id, const absl::Status& error, Listeners* told)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Remove(GroupKey key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Apply(EngineEvent event, Listeners* told, std::vector<GroupReport>* finished)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoteStarts(const std::vector<EngineEvent>& events) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status OutgrewMemory(const Entry& entry) const;
  std::vector<GroupKey> WaitingOthersBeyondHalf() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int64_t OthersBytes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SendAndTell(const Listeners& told) ABSL_LOCKS_EXCLUDED(mu_);
  static void Count(const FinishedCompletion& completion, Entry* entry);
  Counts CountsLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Runner runner_;
  const Limits limits_;
  const SecondsClock clock_;
  const OnFinished on_finished_;
  const std::shared_ptr<ByteMeter> memory_ = std::make_shared<ByteMeter>();
  const std::shared_ptr<ByteMeter> others_memory_ = std::make_shared<ByteMeter>(memory_);

  mutable Mutex mu_;
  std::vector<std::shared_ptr<ByteMeter>> put_behind_
      ABSL_GUARDED_BY(mu_);  // meters of these groups
  CondVar idle_, sent_;
  // Decided under mu_, sent without it in that order, by one thread at a time.
  std::deque<std::function<void()>> orders_ ABSL_GUARDED_BY(mu_);
  std::thread::id sender_ ABSL_GUARDED_BY(mu_);  // default: no thread sends now
  int64_t num_sent_ ABSL_GUARDED_BY(mu_) = 0;
  GroupKey next_key_ ABSL_GUARDED_BY(mu_) = 1;
  std::map<GroupKey, Entry> entries_ ABSL_GUARDED_BY(mu_);  // not finished
  std::map<GroupName, GroupKey> keys_ ABSL_GUARDED_BY(mu_);
  RememberedGroups remembered_ ABSL_GUARDED_BY(mu_);
  AdmissionBatches batches_ ABSL_GUARDED_BY(mu_);
  absl::Status refusal_ ABSL_GUARDED_BY(mu_);
  StartPace pace_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tandem::rollout
