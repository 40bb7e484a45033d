#include "trainer/advantages/batch_advantages.h"

#include <cmath>
#include <cstddef>
#include <map>

#include "common/statistics/sample_statistics.h"
#include "trainer/advantages/group_advantages.h"

namespace tandem::trainer {
namespace {

constexpr double kWhitenEps = 1e-8;  // TRL's and verl's masked_whiten

// The places of a completion's drawn tokens in its row. What stands between them was given to the
// model: returns and targets pass over it, as if the next drawn token followed at once.
std::vector<size_t> PlacesOf(const CompletionOrigin& completion, const ExperienceBatch& batch) {
  const Microbatch& micro = batch.microbatches[static_cast<size_t>(completion.microbatch)];
  std::vector<size_t> places;
  for (auto t = static_cast<size_t>(completion.begin); t < static_cast<size_t>(completion.end);
       ++t) {
    if (micro.loss_mask[t]) places.push_back(t);
  }
  return places;
}

template <typename T>
std::vector<double> Gather(std::span<T> row, const std::vector<size_t>& places) {
  std::vector<double> values;
  for (const size_t t : places) values.push_back(static_cast<double>(row[t]));
  return values;
}

// c d_t of each drawn token of a completion.
std::vector<double> TokenCosts(const BatchSignals& signals, double coefficient,
                               const CompletionOrigin& completion, const ExperienceBatch& batch) {
  const auto row = static_cast<size_t>(completion.microbatch);
  const std::vector<size_t> places = PlacesOf(completion, batch);
  std::vector<double> costs(places.size());
  for (size_t i = 0; i < costs.size(); ++i) {
    const double k1 =
        static_cast<double>(signals.proximal[row][places[i]]) - signals.reference[row][places[i]];
    if (std::isfinite(k1)) costs[i] = coefficient * k1;
  }
  return costs;
}

// [completions][drawn tokens]; empty vectors without KL in the reward.
std::vector<std::vector<double>> AllCosts(const BatchSignals& signals, const KlInReward& kl,
                                          const ExperienceBatch& batch) {
  std::vector<std::vector<double>> costs(batch.completions.size());
  if (kl.coefficient == 0) return costs;
  for (size_t i = 0; i < costs.size(); ++i) {
    costs[i] = TokenCosts(signals, kl.coefficient, batch.completions[i], batch);
  }
  return costs;
}

double Sum(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum;
}

std::vector<float>& AdvantagesOf(const CompletionOrigin& completion, ExperienceBatch& batch) {
  return batch.microbatches[static_cast<size_t>(completion.microbatch)].advantages;
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
      const CompletionOrigin& completion = batch.completions[numbers[k]];
      std::vector<float>& advantages = AdvantagesOf(completion, batch);
      for (const size_t t : PlacesOf(completion, batch)) advantages[t] -= charges[k];
    }
  }
}

std::vector<double> TokenRewards(const CompletionOrigin& completion,
                                 const std::vector<double>& costs, const ExperienceBatch& batch) {
  const Microbatch& micro = batch.microbatches[static_cast<size_t>(completion.microbatch)];
  std::vector<double> rewards = Gather(std::span(micro.rewards), PlacesOf(completion, batch));
  for (size_t t = 0; t < costs.size(); ++t) rewards[t] -= costs[t];
  return rewards;
}

// Kinds without a critic, whose advantages change from token to token.
void ChargeTokens(const std::vector<std::vector<double>>& costs, const AdvantageOptions& options,
                  ExperienceBatch& batch) {
  const bool is_return = options.kind == AdvantageKind::kNone;
  for (size_t i = 0; i < batch.completions.size(); ++i) {
    const CompletionOrigin& completion = batch.completions[i];
    std::vector<float>& advantages = AdvantagesOf(completion, batch);
    if (!is_return && costs[i].empty()) continue;
    const std::vector<size_t> places = PlacesOf(completion, batch);
    const std::vector<double> to_go = offpolicy::ReturnsToGo(
        is_return ? TokenRewards(completion, costs[i], batch) : costs[i], options.value.gamma);
    for (size_t k = 0; k < to_go.size(); ++k) {
      float& advantage = advantages[places[k]];
      advantage = static_cast<float>(is_return ? to_go[k] : advantage - to_go[k]);
    }
  }
}

offpolicy::ValueEstimator EstimatorOf(AdvantageKind kind) {
  if (kind == AdvantageKind::kVtrace) return offpolicy::ValueEstimator::kVtrace;
  if (kind == AdvantageKind::kRetrace) return offpolicy::ValueEstimator::kRetrace;
  return offpolicy::ValueEstimator::kGae;
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
    const std::vector<size_t> places = PlacesOf(completion, batch);
    const std::vector<double> values = Gather(signals.values[row], places);
    std::vector<double> log_ratios;
    if (estimator != offpolicy::ValueEstimator::kGae) {
      const Microbatch& micro = batch.microbatches[row];
      log_ratios = Gather(signals.proximal[row], places);
      for (size_t t = 0; t < places.size(); ++t) {
        log_ratios[t] -= micro.behaviour_logprobs[places[t]];
      }
    }
    const offpolicy::ValueTargets got =
        ComputeValueTargets({.rewards = rewards,
                             .values = values,
                             .bootstrap = completion.truncated ? signals.bootstraps[i] : 0,
                             .log_ratios = log_ratios},
                            estimator, options.value);
    std::vector<float>& advantages = AdvantagesOf(completion, batch);
    for (size_t t = 0; t < values.size(); ++t) {
      advantages[places[t]] = static_cast<float>(got.advantages[t]);
      critic.targets[row][places[t]] = static_cast<float>(got.targets[t]);
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
    const std::vector<float>& advantages = AdvantagesOf(completion, batch);
    for (const size_t t : PlacesOf(completion, batch)) all.push_back(advantages[t]);
  }
  const double mean = offpolicy::Mean(all);
  const auto n = static_cast<double>(all.size());
  const double variance = n < 2 ? 0 : offpolicy::SquaredDeviations(all) / (n - 1);
  const double scale = 1 / std::sqrt(variance + kWhitenEps);
  for (const CompletionOrigin& completion : batch.completions) {
    std::vector<float>& advantages = AdvantagesOf(completion, batch);
    for (const size_t t : PlacesOf(completion, batch)) {
      advantages[t] = static_cast<float>((advantages[t] - mean) * scale);
    }
  }
}

}  // namespace tandem::trainer
