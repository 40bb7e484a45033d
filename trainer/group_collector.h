// GroupCollector: stages 1 to 3 of the trainer's loop. It chooses a prompt and a number of
// completions for each free slot, asks the rollout servers, has what they sampled rewarded, and
// hands out the groups of a train step. Used by trainer.cc. Use from one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "trainer/drift/drift_monitor.h"
#include "trainer/experience/experience_buffer.h"
#include "trainer/prompts/success_counts.h"
#include "trainer/rewards/reward_queue.h"
#include "trainer/rollouts/rollout_client.h"
#include "trainer/run/run_log.h"
#include "trainer/run/run_state.h"
#include "trainer/run_setup.h"
#include "trainer/trainer_options.h"
#include "trainer/weight_push/weight_publisher.h"

namespace tandem::trainer {

class GroupCollector {
 public:
  // All must outlive the collector.
  struct Context {
    const TrainerOptions* options = nullptr;
    const RunInputs* inputs = nullptr;
    RunState* state = nullptr;  // where it goes on from; frontier, planned and prompt_counts change
    RunLog* log = nullptr;
    RolloutClient* client = nullptr;
    RewardQueue* rewards = nullptr;
    DriftMonitor* drift = nullptr;
    const WeightPublisher* publisher = nullptr;
  };
  explicit GroupCollector(const Context& context);

  // Stage 1: sends a request for every free slot, and for the rest of groups whose first
  // completions have rewards that differ.
  void Ask();

  // Waits for a sampled group or for the rewards of one, whichever comes first.
  //   errors of RolloutClient::Next, RewardQueue and Take
  absl::Status Wait();

  // A group that a server sampled, also during an evaluation: it is given its rewards, which may
  // take a while, and becomes experience; or it is dropped with a reason.
  //   exit code kUsage  no server could ever sample it (too large)
  absl::Status Take(FinishedGroup finished);

  bool StepReady() const { return buffer_.StepReady(context_.state->version); }
  StepExperience TakeStep();  // ExperienceBuffer::TakeStep

  // The groups of the last step taken were trained, or their step was skipped: a run that is
  // resumed from now on does not ask for them again.
  void Commit();
  // Servers run the weights of the last step taken, or it made none.
  void StepInstalled() { buffer_.StepInstalled(); }

  int64_t num_waiting() const { return buffer_.num_waiting(); }
  // Groups that came back since the last call of TakeStep.
  int64_t num_done() const { return num_done_; }
  // Seconds that Wait and Take spent on nothing but rewards since the last call.
  double TakeRewardSeconds();

 private:
  bool ReadsCounts() const;  // whether a choice of prompts or sizes reads them
  std::vector<PlannedGroup> Plan(int64_t num_groups) const;
  std::vector<int64_t> Sizes(const std::vector<PlannedGroup>& groups) const;
  void AskForNew();
  void AskForRest();
  // The part of group `id` from completion `first` to `end`; place `place` of `round`.
  void Send(int64_t id, int64_t first, int64_t end, int64_t place, int64_t round);
  absl::Status Drop(int64_t group_id, const std::string& reason, const std::string& message);
  absl::Status Reward(std::shared_ptr<experience::v1::ScoredGroup> group, const Episodes& episodes);
  absl::Status Settle(std::shared_ptr<experience::v1::ScoredGroup> group);
  std::shared_ptr<experience::v1::ScoredGroup> Assemble(FinishedGroup finished);
  void CountSuccesses(const StepExperience& step);
  void CancelUnneeded(const StepExperience& step);

  const Context context_;
  const TrainerOptions& options_;
  ExperienceBuffer buffer_;
  SuccessCounts counts_;
  // First parts that came, whose groups have further completions to come.
  std::map<int64_t, std::shared_ptr<experience::v1::ScoredGroup>> held_;
  std::set<int64_t> asked_for_rest_;  // of those
  int64_t next_batch_;                // of the next round of requests (deterministic runs)
  int64_t num_done_ = 0;
  double reward_seconds_ = 0;
};

}  // namespace tandem::trainer
