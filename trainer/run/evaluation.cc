#include "trainer/run/evaluation.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "trainer/experience/group_check.h"

namespace tandem::trainer {
namespace {

using experience::v1::Prompt;

// Group ids of evaluations differ for each step and kind.
constexpr int64_t kIdsPerKind = int64_t{1} << 20;

int64_t FirstId(int64_t step, bool sampled) {
  return kFirstEvaluationGroup + (2 * step + (sampled ? 1 : 0)) * kIdsPerKind;
}

constexpr std::chrono::milliseconds kWaitEach(200);

std::vector<RewardInput> InputsOf(const Prompt& prompt, const FinishedGroup& group) {
  std::vector<RewardInput> inputs;
  for (const rollout::v1::Completion& completion : group.completions) {
    inputs.push_back(MakeRewardInput(prompt, completion));
    const auto episode = group.episodes.find(completion.index());
    if (episode != group.episodes.end()) inputs.back().episode = episode->second;
  }
  return inputs;
}

// Sums over the prompts of one kind.
struct Tally {
  int64_t waiting = 0;  // for completions or rewards
  int64_t answered = 0, failed = 0;
  double reward = 0;  // of the first completion that has one
  double gold = 0;    // of the same one
  int64_t with_gold = 0;
  int64_t correct = 0;   // prompts with a correct completion
  absl::Status failure;  // of the last prompt that was not answered
};

absl::Status NoneAnswered(const Tally& tally, size_t num_prompts, const char* how) {
  const auto code = tally.failure.code() == absl::StatusCode::kInvalidArgument
                        ? absl::StatusCode::kInvalidArgument
                        : absl::StatusCode::kInternal;
  return {code, absl::StrCat("none of ", num_prompts, " held-out prompts was answered ", how,
                             "; the last: ", tally.failure.message())};
}

void CountFailed(int64_t group_id, const absl::Status& failure, const std::string& reason,
                 Tally* tally) {
  log::Warning("an evaluation prompt failed", {{"group_id", group_id}, {"reason", reason}});
  tally->failure = failure;
  ++tally->failed;
}

// A prompt of which no completion has a reward failed.
void CountRewarded(int64_t group_id, std::vector<Reward> rewards, Tally* tally) {
  --tally->waiting;
  absl::Status failure;
  std::string reason = failure.ToString();
  for (const Reward& reward : rewards) {
    if (IsRewardFailure(reward.mask_reason)) failure = Internal(reason = reward.mask_reason);
  }
  std::erase_if(rewards, [](const Reward& r) { return IsRewardFailure(r.mask_reason); });
  if (rewards.empty()) return CountFailed(group_id, failure, reason, tally);
  ++tally->answered;
  tally->reward += rewards.front().value;
  tally->gold += rewards.front().gold.value_or(0);
  tally->with_gold += rewards.front().gold.has_value();
  tally->correct += std::ranges::any_of(rewards, &Reward::correct);
}

// The next group of `client`, or none: then rewards may be there.
absl::StatusOr<std::optional<FinishedGroup>> NextGroup(RolloutClient& client,
                                                       RewardQueue& rewards) {
  if (rewards.HasRoom()) return client.Next(kWaitEach);
  rewards.WaitFor(kWaitEach);
  return std::nullopt;
}

absl::StatusOr<Tally> Ask(std::span<const Prompt> prompts, bool sampled, int64_t k,
                          const EvaluationContext& context, RolloutClient& client,
                          RewardQueue& rewards, const StopSignal& stop) {
  const int64_t first = FirstId(context.step, sampled);
  const int64_t count = static_cast<int64_t>(prompts.size());
  RunSampling run = context.run;
  run.completions_per_prompt = k;
  if (!sampled) {
    run.sampling.Clear();
    run.sampling.set_max_new_tokens(context.run.sampling.max_new_tokens());
  }
  for (int64_t i = 0; i < count; ++i) {
    const Prompt& prompt = prompts[static_cast<size_t>(i)];
    client.Submit(MakeGroupRequest(run, prompt, first + i, context.version), kAnyServer, {},
                  context.environments == nullptr
                      ? nullptr
                      : context.environments->PlayGroup(prompt, run.seed));
  }
  // Shared with what is done when rewards come, which may be after this function was left.
  const auto tally = std::make_shared<Tally>(Tally{.waiting = count});
  while (tally->waiting > 0) {
    if (stop.Requested()) return Cancelled("stopped during an evaluation");
    TANDEM_RETURN_IF_ERROR(context.tick());
    TANDEM_ASSIGN_OR_RETURN(std::optional<FinishedGroup> group, NextGroup(client, rewards));
    const int64_t id = group.has_value() ? group->group_id : 0;
    const int64_t index = id - first;
    if (group.has_value() && (index < 0 || index >= count)) {
      TANDEM_RETURN_IF_ERROR(context.other(*std::move(group)));
    } else if (group.has_value() && !group->status.ok()) {
      --tally->waiting;
      CountFailed(id, group->status, group->status.ToString(), tally.get());
    } else if (group.has_value()) {
      TANDEM_RETURN_IF_ERROR(rewards.Submit(InputsOf(prompts[static_cast<size_t>(index)], *group),
                                            [tally, id](std::vector<Reward> scored) {
                                              CountRewarded(id, std::move(scored), tally.get());
                                              return absl::OkStatus();
                                            }));
    }
    TANDEM_RETURN_IF_ERROR(rewards.Deliver());
  }
  return *tally;
}

}  // namespace

void BindOptions(OptionBinder& binder, EvaluationOptions& options) {
  binder.Integer("every", &options.every, {.min = 0}, "steps",
                 "evaluate on held-out prompts; 0: only at start and end");
  binder.Flag("at_start", &options.at_start, "evaluate before the first train step");
  binder.Flag("at_end", &options.at_end, "evaluate after the last train step");
  binder.Integer("num_prompts", &options.num_prompts, {.min = 0}, "prompts",
                 "the first so many of the held-out file; 0: all");
  binder.Integer("pass_at_k", &options.pass_at_k, {.min = 0, .max = 1024}, "completions",
                 "also sample so many per prompt and report pass@k; 0: greedy only");
  binder.Integer("max_new_tokens", &options.max_new_tokens, {.min = 0}, "tokens",
                 "0: as in training");
}

absl::StatusOr<EvaluationResult> Evaluate(std::span<const Prompt> prompts,
                                          const EvaluationOptions& options,
                                          const EvaluationContext& context, RolloutClient& client,
                                          RewardQueue& rewards, const StopSignal& stop) {
  const auto wanted = static_cast<size_t>(options.num_prompts);
  if (wanted > 0 && wanted < prompts.size()) prompts = prompts.first(wanted);
  EvaluationResult result;
  TANDEM_ASSIGN_OR_RETURN(const Tally greedy,
                          Ask(prompts, false, 1, context, client, rewards, stop));
  result.num_prompts = greedy.answered;
  result.num_failed = greedy.failed;
  if (greedy.answered == 0) {
    result.none_answered = NoneAnswered(greedy, prompts.size(), "at temperature 0");
    return result;
  }
  const double answered = static_cast<double>(greedy.answered);
  result.greedy = greedy.reward / answered;
  if (greedy.with_gold == greedy.answered) result.gold = greedy.gold / answered;
  result.greedy_share_correct = static_cast<double>(greedy.correct) / answered;
  if (options.pass_at_k == 0) return result;
  TANDEM_ASSIGN_OR_RETURN(const Tally sampled,
                          Ask(prompts, true, options.pass_at_k, context, client, rewards, stop));
  result.num_failed_at_k = sampled.failed;
  if (sampled.answered == 0) {
    result.none_answered = NoneAnswered(sampled, prompts.size(), "for pass@k");
    return result;
  }
  result.k = options.pass_at_k;
  result.pass_at_k = static_cast<double>(sampled.correct) / static_cast<double>(sampled.answered);
  return result;
}

void AddEvaluation(const EvaluationResult& result, int64_t weight_version, int64_t num_too_long,
                   MetricsLine* line) {
  line->AddCount("eval/weight_version", weight_version);
  line->Add("eval/greedy", result.greedy);
  if (result.gold.has_value()) line->Add("eval/gold", *result.gold);
  line->Add("eval/greedy_share_correct", result.greedy_share_correct);
  line->AddCount("eval/num_prompts", result.num_prompts);
  line->AddCount("eval/num_failed", result.num_failed + result.num_failed_at_k);
  line->AddCount("eval/num_too_long", num_too_long);
  if (result.k == 0) return;
  line->Add("eval/pass_at_k", result.pass_at_k);
  line->AddCount("eval/k", result.k);
}

std::string Describe(const EvaluationResult& result, int64_t num_too_long) {
  const double num_correct =
      std::round(result.greedy_share_correct * static_cast<double>(result.num_prompts));
  std::vector<std::string> left_out;
  if (result.num_failed > 0) left_out.push_back(absl::StrCat(result.num_failed, " that failed"));
  if (num_too_long > 0) {
    left_out.push_back(absl::StrCat(num_too_long, " over data.max_prompt_tokens"));
  }
  return absl::StrCat("greedy: ", num_correct, " of ", result.num_prompts,
                      " held-out prompts correct",
                      left_out.empty() ? "" : ", left out: ", absl::StrJoin(left_out, ", "));
}

}  // namespace tandem::trainer
