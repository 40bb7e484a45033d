#include "trainer/metrics/step_metrics.h"

#include <algorithm>

#include "common/statistics/sample_statistics.h"
#include "trainer/advantages/group_advantages.h"
#include "trainer/experience/drawn_tokens.h"
#include "trainer/experience/group_check.h"
#include "trainer/rewards/rewards.h"

namespace tandem::trainer {
namespace {

using experience::v1::ScoredCompletion;
using experience::v1::ScoredGroup;

double Mean(const std::vector<double>& values) {
  return offpolicy::Mean(values, /*empty_value=*/0);
}

double Share(int64_t count, size_t of) {
  return of == 0 ? 0 : static_cast<double>(count) / static_cast<double>(of);
}

// Over the completions that have a reward: a reward program that failed gave none, which is not 0.
// A group without any is not counted.
void AddRewards(const GroupViews& groups, MetricsLine* line) {
  std::vector<double> rewards, group_stds, gold;
  std::map<std::string, std::vector<double>> parts;
  int64_t passed = 0, zero_variance = 0;
  for (const ScoredGroup& group : groups) {
    std::vector<double> of_group;
    bool correct = false;
    for (const ScoredCompletion& member : group.completions()) {
      if (IsRewardFailure(member.drop_reason())) continue;
      of_group.push_back(member.reward());
      correct |= member.correct();
      if (member.has_gold()) gold.push_back(member.gold());
      for (const auto& [name, value] : member.reward_parts()) parts[name].push_back(value);
    }
    if (of_group.empty()) continue;
    passed += correct;
    zero_variance += group.zero_variance() && HasTrainedCompletion(group);
    group_stds.push_back(StandardDeviation(of_group, StdConvention::kSample));
    rewards.insert(rewards.end(), of_group.begin(), of_group.end());
  }
  line->Add("reward/mean", Mean(rewards));
  line->Add("reward/std", StandardDeviation(rewards, StdConvention::kSample));
  line->Add("reward/pass_at_k", Share(passed, group_stds.size()));
  line->Add("reward/group_std_mean", Mean(group_stds));
  line->Add("reward/zero_variance_share", Share(zero_variance, group_stds.size()));
  if (!gold.empty()) line->Add("reward/gold", Mean(gold));
  for (const auto& [name, values] : parts) line->Add("reward/part/" + name, Mean(values));
}

void AddLengths(const GroupViews& groups, MetricsLine* line) {
  std::vector<double> lengths;
  int64_t truncated = 0;
  for (const ScoredGroup& group : groups) {
    for (const ScoredCompletion& member : group.completions()) {
      lengths.push_back(static_cast<double>(NumDrawn(member.completion())));
      truncated += IsTruncated(member.completion());
    }
  }
  line->Add("length/mean", Mean(lengths));
  line->Add("length/min", lengths.empty() ? 0 : *std::ranges::min_element(lengths));
  line->Add("length/max", lengths.empty() ? 0 : *std::ranges::max_element(lengths));
  line->Add("length/truncated_share", Share(truncated, lengths.size()));
}

// Nothing where all completions are of one turn.
void AddTurns(const GroupViews& groups, MetricsLine* line) {
  std::vector<double> turns, waits;
  double given = 0, tokens = 0;
  bool has_turns = false;
  int64_t failed = 0;
  for (const ScoredGroup& group : groups) {
    for (const ScoredCompletion& member : group.completions()) {
      const rollout::v1::Completion& completion = member.completion();
      const bool has_failed = member.drop_reason().starts_with(kEnvironmentFailed);
      failed += has_failed;
      has_turns |= HasTurns(completion) || has_failed;
      turns.push_back(static_cast<double>(NumTurns(completion)));
      waits.push_back(completion.wait_ms() / 1e3);
      tokens += completion.token_ids_size();
      given += static_cast<double>(completion.token_ids_size() - NumDrawn(completion));
    }
  }
  if (!has_turns) return;
  line->Add("turns/mean", Mean(turns));
  line->Add("turns/max", *std::ranges::max_element(turns));
  line->Add("turns/given_share", given / tokens);
  line->Add("turns/wait_mean", Mean(waits));
  line->AddCount("turns/failed", failed);
}

void AddStaleness(const std::vector<ScoredGroup>& groups, WeightVersion version,
                  MetricsLine* line) {
  const std::map<int64_t, int64_t> tokens = TokensByStaleness(groups, version);
  double sum = 0;
  int64_t count = 0, oldest = 0;
  for (const auto& [staleness, num_tokens] : tokens) {
    sum += static_cast<double>(staleness) * static_cast<double>(num_tokens);
    count += num_tokens;
    oldest = std::max(oldest, staleness);
  }
  line->Add("staleness/mean", count == 0 ? 0 : sum / static_cast<double>(count));
  line->AddCount("staleness/max", oldest);
  line->AddObject("staleness/histogram", tokens);
}

}  // namespace

void AddGroupMetrics(const StepExperience& step, WeightVersion version, MetricsLine* line) {
  const GroupViews sampled = SampledGroups(step);
  AddRewards(sampled, line);
  AddLengths(sampled, line);
  AddTurns(sampled, line);
  AddStaleness(step.groups, version, line);
}

void AddExternalRewards(const RewardNumbers& numbers, const GroupViews& sampled,
                        MetricsLine* line) {
  size_t completions = 0;
  int64_t failed = 0;
  for (const ScoredGroup& group : sampled) {
    completions += static_cast<size_t>(group.completions_size());
    failed += std::ranges::count_if(group.completions(), [](const ScoredCompletion& member) {
      return IsRewardFailure(member.drop_reason());
    });
  }
  std::vector<double> latencies = numbers.latencies;
  std::ranges::sort(latencies);
  if (!latencies.empty()) {
    line->Add("reward/latency_p50", offpolicy::SortedQuantile(latencies, 0.5));
  }
  line->Add("reward/failed_share", Share(failed, completions));
  line->AddCount("reward/cache_hits", numbers.cache_hits);
  if (numbers.judge_calls > 0) {
    line->AddCount("reward/judge_calls", numbers.judge_calls);
    line->AddCount("reward/judge_tokens", numbers.judge_tokens);
  }
  if (numbers.model_rewards > 0) {
    line->Add("reward/model_disagreement",
              numbers.model_disagreement / static_cast<double>(numbers.model_rewards));
  }
  if (numbers.python_calls > 0) {
    line->AddCount("reward/python_calls", numbers.python_calls);
    line->Add("reward/python_seconds_per_call",
              numbers.python_seconds / static_cast<double>(numbers.python_calls));
  }
  for (const auto& [name, sum_and_count] : numbers.logged) {
    const auto& [sum, count] = sum_and_count;
    line->Add("reward/logged/" + name, sum / static_cast<double>(std::max<int64_t>(1, count)));
  }
  if (numbers.pairs > 0) {
    line->Add("reward/judge_position_disagreement",
              Share(numbers.pair_disagreements, static_cast<size_t>(numbers.pairs)));
  }
}

void AddAdvantageMetrics(const std::vector<ScoredGroup>& groups, MetricsLine* line) {
  std::vector<double> advantages;
  for (const ScoredGroup& group : groups) {
    for (const ScoredCompletion& member : group.completions()) {
      if (!member.masked()) advantages.push_back(member.advantage());
    }
  }
  const double std = StandardDeviation(advantages, StdConvention::kPopulation);
  line->Add("advantage/mean", Mean(advantages));
  line->Add("advantage/var", std * std);
}

void TakeTrainedAdvantages(const PerToken& trained, std::vector<ScoredGroup>* groups) {
  for (ScoredGroup& group : *groups) {
    for (int i = 0; i < group.completions_size(); ++i) {
      const std::span<const float> tokens = FindTokens(trained, group.group_id(), i);
      if (tokens.empty()) continue;
      ScoredCompletion* const member = group.mutable_completions(i);
      const std::vector<int32_t> turns = TurnsOf(member->completion());
      std::vector<double> drawn;  // given ones have none
      for (size_t t = 0; t < tokens.size(); ++t) {
        if (turns[t] > 0) drawn.push_back(tokens[t]);
      }
      member->set_advantage(static_cast<float>(Mean(drawn)));
      member->clear_token_advantages();
      if (std::ranges::adjacent_find(drawn, std::ranges::not_equal_to()) == drawn.end()) continue;
      member->mutable_token_advantages()->Add(tokens.begin(), tokens.end());
    }
  }
}

void AddDropMetrics(const std::vector<ScoredGroup>& groups,
                    const std::vector<DroppedGroup>& dropped, MetricsLine* line) {
  std::map<std::string, int64_t> reasons;
  for (const DroppedGroup& group : dropped) ++reasons["group_" + group.reason];
  for (const auto& [reason, count] : MaskedCompletions(groups)) {
    reasons["completion_" + reason] += count;
  }
  for (const auto& [reason, count] : reasons) line->AddCount("drops/" + reason, count);
}

std::map<std::string, int64_t> MaskedCompletions(const std::vector<ScoredGroup>& groups) {
  std::map<std::string, int64_t> reasons;
  for (const ScoredGroup& group : groups) {
    for (const ScoredCompletion& member : group.completions()) {
      if (!member.masked()) continue;
      // "reward_failed: gsm8k: ..." counts as reward_failed.
      ++reasons[member.drop_reason().substr(0, member.drop_reason().find(':'))];
    }
  }
  return reasons;
}

std::map<int64_t, int64_t> TokensByStaleness(const std::vector<ScoredGroup>& groups,
                                             WeightVersion version, bool trained_only) {
  std::map<int64_t, int64_t> tokens;
  for (const ScoredGroup& group : groups) {
    for (const ScoredCompletion& member : group.completions()) {
      if (trained_only && member.masked()) continue;
      for (const auto& span : member.completion().version_spans()) {
        tokens[version.value - span.weight_version()] += span.num_tokens();
      }
    }
  }
  return tokens;
}

int64_t CountTokens(const GroupViews& groups) {
  int64_t tokens = 0;
  for (const ScoredGroup& group : groups) {
    for (const ScoredCompletion& member : group.completions()) {
      tokens += NumDrawn(member.completion());
    }
  }
  return tokens;
}

}  // namespace tandem::trainer
