#include "trainer/loss/step_sums.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <map>
#include <vector>

#include "common/base/status_macros.h"

namespace tandem::trainer {
namespace {

// The mean advantage of each completion's drawn tokens, by its number in batch.completions.
std::vector<double> AdvantagesOf(const ExperienceBatch& batch) {
  std::vector<double> of_completion;
  for (const CompletionOrigin& completion : batch.completions) {
    const Microbatch& micro = batch.microbatches[static_cast<size_t>(completion.microbatch)];
    double sum = 0;
    int64_t num_drawn = 0;
    for (int64_t t = completion.begin; t < completion.end; ++t) {
      sum += micro.advantages[static_cast<size_t>(t)];  // 0 on given tokens
      num_drawn += micro.loss_mask[static_cast<size_t>(t)];
    }
    of_completion.push_back(sum / static_cast<double>(num_drawn));
  }
  return of_completion;
}

}  // namespace

absl::Status SumOverRanks(comm::RankReducer& ranks, LossNumbers& sums) {
  auto num_tokens = static_cast<double>(sums.num_tokens);
  std::vector<double*> summed = {&sums.policy, &sums.kl, &sums.total, &sums.denominator,
                                 &num_tokens};
  std::vector<double*> largest;
  for (const TokenNumber& number : kTokenNumbers) {
    (number.is_max ? largest : summed).push_back(&(sums.*number.value));
  }
  summed.push_back(&sums.pairs.num_pairs);
  for (const PairNumber& number : kPairNumbers) summed.push_back(&(sums.pairs.*number.sum));
  const auto reduce = [](const std::vector<double*>& places, const auto& reduction) {
    std::vector<double> values;
    for (const double* const place : places) values.push_back(*place);
    TANDEM_RETURN_IF_ERROR(reduction(values));
    for (size_t i = 0; i < values.size(); ++i) *places[i] = values[i];
    return absl::OkStatus();
  };
  TANDEM_RETURN_IF_ERROR(reduce(summed, [&](auto& values) { return ranks.Sum(values); }));
  sums.num_tokens = static_cast<int64_t>(num_tokens);
  return reduce(largest, [&](auto& values) { return ranks.Max(values); });
}

void AddTokens(const LossNumbers& added, LossNumbers& numbers) {
  for (const auto& [name, value, is_max, needs_reference] : kTokenNumbers) {
    numbers.*value =
        is_max ? std::max(numbers.*value, added.*value) : numbers.*value + added.*value;
  }
  numbers.num_tokens += added.num_tokens;
  numbers.pairs.num_pairs += added.pairs.num_pairs;
  for (const auto& [name, sum] : kPairNumbers) numbers.pairs.*sum += added.pairs.*sum;
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
  LossNumbers row;
  row.ratio_sum = value(sums.ratio_sum);
  row.ratio_max = value(sums.ratio_max);
  row.clip_low = static_cast<double>(sums.clip_low);
  row.clip_high = static_cast<double>(sums.clip_high);
  row.dual_clip = static_cast<double>(sums.dual_clip);
  row.proximal_kl_sum = sums.proximal_kl;
  row.k1 = value(sums.k1);
  row.k2 = value(sums.k2);
  row.k3 = value(sums.k3);
  row.num_tokens = kept.sum().item<int64_t>();
  row.pairs = sums.pairs;
  row.entropy_sum = value(at::where(kept, entropies, at::zeros({})).sum());
  AddTokens(row, numbers);
}

void AddAdvantages(const ExperienceBatch& batch, StepReport& report) {
  const std::vector<double> of_completion = AdvantagesOf(batch);
  const auto n = static_cast<double>(of_completion.size());
  for (const double a : of_completion) report.advantage_mean += a / n;
  for (const double a : of_completion) {
    report.advantage_var += (a - report.advantage_mean) * (a - report.advantage_mean) / n;
  }
}

}  // namespace tandem::trainer
