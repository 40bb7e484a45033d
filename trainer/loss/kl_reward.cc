#include "trainer/loss/kl_reward.h"

#include <cmath>
#include <map>
#include <vector>

namespace tandem::trainer {
namespace {

// By number in batch.completions.
std::vector<double> Costs(std::span<const at::Tensor> proximal,
                          std::span<const at::Tensor> reference, double kl_coefficient,
                          const ExperienceBatch& batch) {
  std::vector<double> costs(batch.completions.size());
  for (size_t m = 0; m < batch.microbatches.size(); ++m) {
    const Microbatch& micro = batch.microbatches[m];
    const at::Tensor under_proximal = proximal[m].contiguous();
    const at::Tensor under_reference = reference[m].contiguous();
    const float* const log_proximal = under_proximal.const_data_ptr<float>();
    const float* const log_reference = under_reference.const_data_ptr<float>();
    for (int64_t t = 0; t < micro.row.num_tokens(); ++t) {
      const double k1 = static_cast<double>(log_proximal[t]) - log_reference[t];
      if (!micro.loss_mask[t] || !std::isfinite(k1)) continue;
      costs[static_cast<size_t>(micro.completion[t])] += kl_coefficient * k1;
    }
  }
  return costs;
}

}  // namespace

double ChargeKl(std::span<const at::Tensor> proximal, std::span<const at::Tensor> reference,
                double kl_coefficient, const AdvantageOptions& advantage, ExperienceBatch& batch) {
  const std::vector<double> costs = Costs(proximal, reference, kl_coefficient, batch);
  std::map<int64_t, std::vector<size_t>> members;  // of each group
  for (size_t i = 0; i < batch.completions.size(); ++i) {
    members[batch.completions[i].group].push_back(i);
  }
  std::vector<float> advantages(batch.completions.size());
  double sum = 0;
  for (const auto& [group, numbers] : members) {
    std::vector<double> rewards, of_group;
    for (const size_t i : numbers) {
      rewards.push_back(batch.completions[i].reward);
      of_group.push_back(costs[i]);
      sum += costs[i];
    }
    const std::vector<float> values = ChargedAdvantages(rewards, of_group, advantage);
    for (size_t k = 0; k < numbers.size(); ++k) advantages[numbers[k]] = values[k];
  }
  for (Microbatch& micro : batch.microbatches) {
    for (int64_t t = 0; t < micro.row.num_tokens(); ++t) {
      if (micro.completion[t] >= 0) {
        micro.advantages[t] = advantages[static_cast<size_t>(micro.completion[t])];
      }
    }
  }
  return sum / static_cast<double>(batch.completions.size());
}

}  // namespace tandem::trainer
