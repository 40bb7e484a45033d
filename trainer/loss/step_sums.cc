#include "trainer/loss/step_sums.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <map>
#include <span>
#include <vector>

#include "common/base/status_macros.h"

namespace tandem::trainer {
namespace {

// The advantage of each completion, by its number in batch.completions: all of its tokens have one.
std::vector<float> AdvantagesOf(const ExperienceBatch& batch) {
  std::vector<float> of_completion(batch.completions.size());
  for (const Microbatch& micro : batch.microbatches) {
    for (int64_t t = 0; t < micro.row.num_tokens(); ++t) {
      if (micro.completion[t] >= 0) of_completion[micro.completion[t]] = micro.advantages[t];
    }
  }
  return of_completion;
}

}  // namespace

absl::Status SumOverRanks(comm::RankReducer& ranks, MinibatchSums& sums) {
  LossNumbers& of = sums.tokens;
  auto num_tokens = static_cast<double>(of.num_tokens);
  double* const places[] = {&sums.policy,  &sums.kl,     &sums.total,   &sums.denominator,
                            &of.ratio_sum, &of.clip_low, &of.clip_high, &of.dual_clip,
                            &of.k1,        &of.k2,       &of.k3,        &of.entropy_sum,
                            &num_tokens};
  std::vector<double> values;
  for (const double* const place : places) values.push_back(*place);
  TANDEM_RETURN_IF_ERROR(ranks.Sum(values));
  for (size_t i = 0; i < values.size(); ++i) *places[i] = values[i];
  of.num_tokens = static_cast<int64_t>(num_tokens);
  return ranks.Max(std::span(&of.ratio_max, 1));
}

void AddTokens(const LossNumbers& added, LossNumbers& numbers) {
  numbers.ratio_sum += added.ratio_sum;
  numbers.ratio_max = std::max(numbers.ratio_max, added.ratio_max);
  numbers.clip_low += added.clip_low;
  numbers.clip_high += added.clip_high;
  numbers.dual_clip += added.dual_clip;
  numbers.k1 += added.k1;
  numbers.k2 += added.k2;
  numbers.k3 += added.k3;
  numbers.num_tokens += added.num_tokens;
  numbers.entropy_sum += added.entropy_sum;
}

void AddCorrection(const offpolicy::Correction& correction, const Microbatch& micro,
                   CorrectionNumbers& numbers) {
  std::map<int32_t, int64_t> lengths;  // of completions, in trained tokens
  for (size_t t = 0; t < correction.kept.size(); ++t) {
    lengths[micro.completion[t]] += micro.loss_mask[t];
  }
  for (size_t t = 0; t < correction.kept.size(); ++t) {
    if (!micro.loss_mask[t]) continue;
    const bool kept = correction.kept[t];
    numbers.AddShare(micro.advantages[t], lengths[micro.completion[t]], kept, correction.weight[t]);
    if (kept) numbers.Add(correction.raw_weight[t], correction.weight[t]);
  }
  numbers.num_capped += correction.num_capped;
  numbers.num_rejected += correction.num_rejected;
  numbers.num_nonfinite += correction.num_nonfinite;
}

void AddLoss(const LossSums& sums, const at::Tensor& kept, const at::Tensor& entropies,
             LossNumbers& numbers) {
  const auto value = [](const at::Tensor& x) { return x.item<double>(); };
  numbers.ratio_sum += value(sums.ratio_sum);
  numbers.ratio_max = std::max(numbers.ratio_max, value(sums.ratio_max));
  numbers.clip_low += static_cast<double>(sums.clip_low);
  numbers.clip_high += static_cast<double>(sums.clip_high);
  numbers.dual_clip += static_cast<double>(sums.dual_clip);
  numbers.k1 += value(sums.k1);
  numbers.k2 += value(sums.k2);
  numbers.k3 += value(sums.k3);
  numbers.num_tokens += value(kept.sum());
  numbers.entropy_sum += value(at::where(kept, entropies, at::zeros({})).sum());
}

void AddAdvantages(const ExperienceBatch& batch, StepReport& report) {
  const std::vector<float> of_completion = AdvantagesOf(batch);
  const auto n = static_cast<double>(of_completion.size());
  for (const double a : of_completion) report.advantage_mean += a / n;
  for (const double a : of_completion) {
    report.advantage_var += (a - report.advantage_mean) * (a - report.advantage_mean) / n;
  }
}

}  // namespace tandem::trainer
