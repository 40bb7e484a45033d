// Evaluation: how good the policy is on held-out prompts, through the same rollout servers: greedy,
// and sampled pass@k by option. Used by trainer.cc between train steps.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "common/options/options.h"
#include "common/process/stop_signal.h"
#include "proto/experience.pb.h"
#include "trainer/environments/environment_pool.h"
#include "trainer/metrics/metrics_line.h"
#include "trainer/prompts/group_request.h"
#include "trainer/rewards/reward_queue.h"
#include "trainer/rollouts/rollout_client.h"

namespace tandem::trainer {

struct EvaluationOptions {
  int64_t every = 0;  // train steps; 0: only at start and end
  bool at_start = true;
  bool at_end = true;
  int64_t num_prompts = 0;     // from the start of the file; 0: all
  int64_t pass_at_k = 0;       // samples per prompt; 0: greedy only
  int64_t max_new_tokens = 0;  // 0: as in training
};
void BindOptions(OptionBinder& binder, EvaluationOptions& options);

struct EvaluationResult {
  int64_t num_prompts = 0;          // that were answered
  int64_t num_failed = 0;           // the server or the reward gave up: in none of the means
  double greedy = 0;                // mean reward
  std::optional<double> gold;       // mean held-out reward, where all of them have one
  double greedy_share_correct = 0;  // share with a correct completion (Reward::correct)
  double pass_at_k = 0;             // share of prompts with a correct one among k
  int64_t num_failed_at_k = 0;      // as num_failed, of the sampled ones
  int64_t k = 0;                    // 0: not sampled, or none was answered
  // Why there are no numbers: no prompt was answered, greedily or, where those are there, sampled.
  // A share of 0 prompts is not 0. INVALID_ARGUMENT: the last of them was refused as such.
  absl::Status none_answered;
};

struct EvaluationContext {
  // With the sampling of training. Samples for pass@k use all of it, filters included; greedy
  // completions use its length alone. The number of completions is that of the options.
  RunSampling run;
  int64_t step = 0;     // of the run: evaluations of different steps ask for different groups
  int64_t version = 0;  // weights to evaluate: the newest that servers were given
  EnvironmentPool* environments = nullptr;           // plays completions whose run has turns
  std::function<absl::Status()> tick;                // called while waiting: keeps servers in sync
  std::function<absl::Status(FinishedGroup)> other;  // gets groups that are not of this evaluation
};

// Asks for the first options.num_prompts prompts and waits for all. OK also where none was
// answered: then the result says so. `client` is woken when `rewards` has a group to deliver; groups
// of others that it delivers meanwhile go where they were submitted for.
//   CANCELLED  a stop was requested
//   any error of RolloutClient::Next, RewardQueue::Deliver, `tick` and `other`
absl::StatusOr<EvaluationResult> Evaluate(std::span<const experience::v1::Prompt> prompts,
                                          const EvaluationOptions& options,
                                          const EvaluationContext& context, RolloutClient& client,
                                          RewardQueue& rewards, const StopSignal& stop);

// Adds eval/ of metrics.jsonl. `weight_version`: what was evaluated; `num_too_long`: held-out
// prompts over data.max_prompt_tokens.
void AddEvaluation(const EvaluationResult& result, int64_t weight_version, int64_t num_too_long,
                   MetricsLine* line);

// "greedy: 3 of 4 held-out prompts correct, left out: 1 that failed"
std::string Describe(const EvaluationResult& result, int64_t num_too_long);

}  // namespace tandem::trainer
