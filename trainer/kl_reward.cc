#include "trainer/kl_reward.h"

#include <cmath>
#include <map>
#include <vector>

#include "trainer/policy_loss.h"

namespace tandem::trainer {
namespace {

// By number in batch.completions.
std::vector<double> Penalties(std::span<const at::Tensor> proximal,
                              std::span<const at::Tensor> reference, const PolicyLossOptions& loss,
                              const ExperienceBatch& batch) {
  PolicyLossOptions plain = loss;
  plain.kl_ratio_weighted = false;
  std::vector<double> penalties(batch.completions.size());
  for (size_t m = 0; m < batch.microbatches.size(); ++m) {
    const Microbatch& micro = batch.microbatches[m];
    const at::Tensor kl = ReferenceKl(proximal[m], reference[m], {}, plain).contiguous();
    const float* values = kl.const_data_ptr<float>();
    for (int64_t t = 0; t < micro.row.num_tokens(); ++t) {
      if (!micro.loss_mask[t] || !std::isfinite(values[t])) continue;
      penalties[static_cast<size_t>(micro.completion[t])] += loss.kl_coefficient * values[t];
    }
  }
  return penalties;
}

}  // namespace

double PenaliseRewards(std::span<const at::Tensor> proximal, std::span<const at::Tensor> reference,
                       const PolicyLossOptions& loss, const AdvantageOptions& advantage,
                       ExperienceBatch& batch) {
  const std::vector<double> penalties = Penalties(proximal, reference, loss, batch);
  std::map<int64_t, std::vector<size_t>> members;  // of each group
  for (size_t i = 0; i < batch.completions.size(); ++i) {
    members[batch.completions[i].group].push_back(i);
  }
  std::vector<float> advantages(batch.completions.size());
  double sum = 0;
  for (const auto& [group, numbers] : members) {
    std::vector<double> rewards;
    for (const size_t i : numbers) {
      rewards.push_back(batch.completions[i].reward - penalties[i]);
      sum += penalties[i];
    }
    const std::vector<float> values = ComputeAdvantages(rewards, advantage);
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
