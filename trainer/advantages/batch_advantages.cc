#include "trainer/advantages/batch_advantages.h"

#include <cmath>
#include <cstddef>
#include <map>

#include "common/statistics/sample_statistics.h"
#include "trainer/advantages/group_advantages.h"

namespace tandem::trainer {
namespace {

constexpr double kWhitenEps = 1e-8;  // TRL's and verl's masked_whiten

// The elements of one completion in its row.
template <typename T>
std::span<T> TokensOf(const CompletionOrigin& completion, std::span<T> row) {
  return row.subspan(static_cast<size_t>(completion.begin),
                     static_cast<size_t>(completion.end - completion.begin));
}

// c d_t of each token of a completion.
std::vector<double> TokenCosts(const BatchSignals& signals, double coefficient,
                               const CompletionOrigin& completion) {
  const auto row = static_cast<size_t>(completion.microbatch);
  const auto proximal = TokensOf(completion, signals.proximal[row]);
  const auto reference = TokensOf(completion, signals.reference[row]);
  std::vector<double> costs(proximal.size());
  for (size_t t = 0; t < costs.size(); ++t) {
    const double k1 = static_cast<double>(proximal[t]) - reference[t];
    if (std::isfinite(k1)) costs[t] = coefficient * k1;
  }
  return costs;
}

// [completions][tokens]; empty vectors without KL in the reward.
std::vector<std::vector<double>> AllCosts(const BatchSignals& signals, const KlInReward& kl,
                                          const ExperienceBatch& batch) {
  std::vector<std::vector<double>> costs(batch.completions.size());
  if (kl.coefficient == 0) return costs;
  for (size_t i = 0; i < costs.size(); ++i) {
    costs[i] = TokenCosts(signals, kl.coefficient, batch.completions[i]);
  }
  return costs;
}

double Sum(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum;
}

std::span<float> AdvantagesOf(const CompletionOrigin& completion, ExperienceBatch& batch) {
  Microbatch& micro = batch.microbatches[static_cast<size_t>(completion.microbatch)];
  return TokensOf(completion, std::span(micro.advantages));
}

// kl_place reward: a cost of the completion as a whole, centred in its group.
void ChargeCompletions(const std::vector<std::vector<double>>& costs, AdvantageKind kind,
                       ExperienceBatch& batch) {
  std::map<int64_t, std::vector<size_t>> members;  // of each group
  for (size_t i = 0; i < batch.completions.size(); ++i) {
    members[batch.completions[i].group].push_back(i);
  }
  for (const auto& [group, numbers] : members) {
    std::vector<double> of_group;
    for (const size_t i : numbers) of_group.push_back(Sum(costs[i]));
    const std::vector<float> charges = CentredCosts(of_group, kind);
    for (size_t k = 0; k < numbers.size(); ++k) {
      for (float& advantage : AdvantagesOf(batch.completions[numbers[k]], batch)) {
        advantage -= charges[k];
      }
    }
  }
}

std::vector<double> TokenRewards(const CompletionOrigin& completion,
                                 const std::vector<double>& costs, const ExperienceBatch& batch) {
  const Microbatch& micro = batch.microbatches[static_cast<size_t>(completion.microbatch)];
  const auto of_row = TokensOf(completion, std::span(micro.rewards));
  std::vector<double> rewards(of_row.begin(), of_row.end());
  for (size_t t = 0; t < costs.size(); ++t) rewards[t] -= costs[t];
  return rewards;
}

// Kinds without a critic, whose advantages change from token to token.
void ChargeTokens(const std::vector<std::vector<double>>& costs, const AdvantageOptions& options,
                  ExperienceBatch& batch) {
  const bool is_return = options.kind == AdvantageKind::kNone;
  for (size_t i = 0; i < batch.completions.size(); ++i) {
    const CompletionOrigin& completion = batch.completions[i];
    const std::span<float> advantages = AdvantagesOf(completion, batch);
    if (!is_return && costs[i].empty()) continue;
    const std::vector<double> to_go = offpolicy::ReturnsToGo(
        is_return ? TokenRewards(completion, costs[i], batch) : costs[i], options.value.gamma);
    for (size_t t = 0; t < to_go.size(); ++t) {
      advantages[t] = static_cast<float>(is_return ? to_go[t] : advantages[t] - to_go[t]);
    }
  }
}

offpolicy::ValueEstimator EstimatorOf(AdvantageKind kind) {
  if (kind == AdvantageKind::kVtrace) return offpolicy::ValueEstimator::kVtrace;
  if (kind == AdvantageKind::kRetrace) return offpolicy::ValueEstimator::kRetrace;
  return offpolicy::ValueEstimator::kGae;
}

template <typename T>
std::vector<double> ToDoubles(std::span<T> values) {
  return {values.begin(), values.end()};
}

CriticTargets AskCritic(const BatchSignals& signals, const std::vector<std::vector<double>>& costs,
                        const AdvantageOptions& options, ExperienceBatch& batch) {
  const offpolicy::ValueEstimator estimator = EstimatorOf(options.kind);
  CriticTargets critic;
  for (const Microbatch& micro : batch.microbatches) {
    critic.targets.emplace_back(static_cast<size_t>(micro.row.num_tokens()));
  }
  std::vector<double> all_values, all_targets;
  for (size_t i = 0; i < batch.completions.size(); ++i) {
    const CompletionOrigin& completion = batch.completions[i];
    const auto row = static_cast<size_t>(completion.microbatch);
    const std::vector<double> rewards = TokenRewards(completion, costs[i], batch);
    const std::vector<double> values = ToDoubles(TokensOf(completion, signals.values[row]));
    std::vector<double> log_ratios;
    if (estimator != offpolicy::ValueEstimator::kGae) {
      const Microbatch& micro = batch.microbatches[row];
      log_ratios = ToDoubles(TokensOf(completion, signals.proximal[row]));
      const auto behaviour = TokensOf(completion, std::span(micro.behaviour_logprobs));
      for (size_t t = 0; t < log_ratios.size(); ++t) log_ratios[t] -= behaviour[t];
    }
    const offpolicy::ValueTargets got =
        ComputeValueTargets({.rewards = rewards,
                             .values = values,
                             .bootstrap = completion.truncated ? signals.bootstraps[i] : 0,
                             .log_ratios = log_ratios},
                            estimator, options.value);
    const std::span<float> advantages = AdvantagesOf(completion, batch);
    const std::span<float> targets = TokensOf(completion, std::span(critic.targets[row]));
    for (size_t t = 0; t < values.size(); ++t) {
      advantages[t] = static_cast<float>(got.advantages[t]);
      targets[t] = static_cast<float>(got.targets[t]);
    }
    all_values.insert(all_values.end(), values.begin(), values.end());
    all_targets.insert(all_targets.end(), got.targets.begin(), got.targets.end());
  }
  critic.value_mean = offpolicy::Mean(all_values);
  critic.target_mean = offpolicy::Mean(all_targets);
  critic.explained_variance = offpolicy::ExplainedVariance(all_values, all_targets);
  return critic;
}

}  // namespace

BatchAdvantages SetBatchAdvantages(const BatchSignals& signals, const KlInReward& kl,
                                   const AdvantageOptions& options, ExperienceBatch& batch) {
  BatchAdvantages result;
  const std::vector<std::vector<double>> costs = AllCosts(signals, kl, batch);
  for (const std::vector<double>& of_completion : costs) result.kl_penalty += Sum(of_completion);
  result.kl_penalty /= static_cast<double>(batch.completions.size());
  if (NeedsCritic(options.kind)) {
    result.critic = AskCritic(signals, costs, options, batch);
  } else if (kl.per_token || options.kind == AdvantageKind::kNone) {
    ChargeTokens(kl.per_token ? costs : std::vector<std::vector<double>>(costs.size()), options,
                 batch);
  }
  if (kl.coefficient != 0 && !kl.per_token) ChargeCompletions(costs, options.kind, batch);
  if (options.whiten) WhitenAdvantages(batch);
  return result;
}

void WhitenAdvantages(ExperienceBatch& batch) {
  std::vector<double> all;
  for (const CompletionOrigin& completion : batch.completions) {
    for (const float advantage : AdvantagesOf(completion, batch)) all.push_back(advantage);
  }
  const double mean = offpolicy::Mean(all);
  const auto n = static_cast<double>(all.size());
  const double variance = n < 2 ? 0 : offpolicy::SquaredDeviations(all) / (n - 1);
  const double scale = 1 / std::sqrt(variance + kWhitenEps);
  for (const CompletionOrigin& completion : batch.completions) {
    for (float& advantage : AdvantagesOf(completion, batch)) {
      advantage = static_cast<float>((advantage - mean) * scale);
    }
  }
}

}  // namespace tandem::trainer
