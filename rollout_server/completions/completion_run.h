// CompletionRun: a job under way in the engine. Its prompts are groups like those of GenerateGroup,
// with the same queue, limits and memory, and their scores are scores like those of Score.
//
// Whoever runs it asks Next for one item after the other, at its own pace, and is told when there is
// more. What was not asked for is held by the groups, whose memory server.memory_bytes bounds.
// Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/weight_version.h"
#include "rollout_server/completions/completion_job.h"
#include "rollout_server/groups/engine_thread.h"
#include "rollout_server/groups/group_call.h"
#include "rollout_server/groups/ownership.h"
#include "rollout_server/service/services.h"

namespace tandem::rollout {

class CompletionRun : public GroupListener, public std::enable_shared_from_this<CompletionRun> {
 public:
  struct Nothing {};  // wait for on_progress
  struct Drawn {
    size_t choice = 0;
    DrawnPtr tokens;
  };
  struct Completed {
    size_t choice = 0;
    CompletionPtr completion;
  };
  struct Scored {                        // the first item of a job with score_prompts
    std::vector<SequenceScore> prompts;  // of a prompt of one token: empty
    WeightVersion version;
  };
  struct Finished {
    int64_t num_prompt_tokens_cached = 0;
  };
  // Finished or an error is the last item.
  using Item = std::variant<Nothing, Drawn, Completed, Scored, Finished, absl::Status>;

  // Starts the job for a caller. `on_progress` runs on any thread, without a lock held, when Next
  // may have something; not after Cancel.
  //   UNAVAILABLE  the server drains
  //   errors of Ownership::CheckUser, EngineThread::Validate and GroupRegistry::Join
  // After an error nothing of it runs.
  static absl::StatusOr<std::shared_ptr<CompletionRun>> Start(const ServiceParts& parts,
                                                              CompletionJob job, CallerProof who,
                                                              std::function<void()> on_progress);
  ~CompletionRun() override = default;

  Item Next() ABSL_LOCKS_EXCLUDED(mu_);

  // Nobody wants the rest: its groups are freed.
  void Cancel() ABSL_LOCKS_EXCLUDED(mu_);

  const CompletionJob& job() const { return job_; }

  void OnProgress() override;  // of GroupListener

 private:
  struct Prompt {
    std::shared_ptr<GroupCall> call;
    size_t cursor = 0;
    bool ended = false;
  };

  CompletionRun(const ServiceParts& parts, CompletionJob job, std::function<void()> on_progress)
      : parts_(parts), job_(std::move(job)), on_progress_(std::move(on_progress)) {}

  absl::Status Join(const CallerProof& who, Standing standing) ABSL_LOCKS_EXCLUDED(mu_);
  void StartScore(bool is_owner);
  void OnScores(absl::StatusOr<ScoreResult> result) ABSL_LOCKS_EXCLUDED(mu_);
  Item ItemOf(size_t prompt, GroupCall::Item item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LeaveAll() ABSL_LOCKS_EXCLUDED(mu_);

  const ServiceParts parts_;
  const CompletionJob job_;
  const double began_ = MonotonicSeconds();

  Mutex mu_;
  std::function<void()> on_progress_ ABSL_GUARDED_BY(mu_);
  std::vector<Prompt> prompts_ ABSL_GUARDED_BY(mu_);
  size_t turn_ ABSL_GUARDED_BY(mu_) = 0;  // the prompt to be asked next
  std::optional<Scored> scores_ ABSL_GUARDED_BY(mu_);
  bool waits_for_scores_ ABSL_GUARDED_BY(mu_) = false;
  Finished finished_ ABSL_GUARDED_BY(mu_);
  absl::Status error_ ABSL_GUARDED_BY(mu_);
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false, told_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace tandem::rollout
