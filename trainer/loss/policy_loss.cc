#include "trainer/loss/policy_loss.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "common/offpolicy/correction.h"
#include "common/offpolicy/policy_objective.h"
#include "trainer/loss/correction_tensors.h"
#include "trainer/loss/pair_objective.h"

namespace tandem::trainer {
namespace {

at::Tensor ClampedExp(const at::Tensor& exponent) {
  return at::exp(at::clamp(exponent, -offpolicy::kMaxLogRatio, offpolicy::kMaxLogRatio));
}

at::Tensor Estimate(const at::Tensor& log_ratio, KlEstimator estimator) {
  if (estimator == KlEstimator::kK1) return log_ratio;
  if (estimator == KlEstimator::kK2) return log_ratio * log_ratio / 2;
  // kK3, and kAuto of a loss.
  return ClampedExp(-log_ratio) - 1 + log_ratio;
}

// Inputs of the objective as numbers, from which no gradient can come.
struct Numbers {
  explicit Numbers(const LossInputs& inputs)
      : target(ToDoubles(inputs.target_logprobs)),
        centre(ToDoubles(inputs.proximal_logprobs)),
        weight(ToDoubles(inputs.weight)),
        advantages(ToDoubles(inputs.advantages)) {
    const at::Tensor mask = inputs.kept.contiguous(), of = inputs.completion.contiguous();
    kept.assign(mask.const_data_ptr<bool>(), mask.const_data_ptr<bool>() + mask.numel());
    completion.assign(of.const_data_ptr<int64_t>(), of.const_data_ptr<int64_t>() + of.numel());
    spans = {.target_logprobs = target,
             .centre_logprobs = centre,
             .weight = weight,
             .advantages = advantages,
             .kept = kept,
             .completion = completion,
             .second_moment_cutoff = inputs.second_moment_cutoff};
  }
  Numbers(const Numbers&) = delete;

  std::vector<double> target, centre, weight, advantages;
  std::vector<uint8_t> kept;
  std::vector<int64_t> completion;
  offpolicy::ObjectiveInputs spans;  // of the vectors above
};

// The policy term of every token; pairs are added to `pairs`.
offpolicy::Objective ObjectiveOf(const LossInputs& inputs, const PolicyLossOptions& options,
                                 PairNumbers& pairs) {
  const Numbers numbers(inputs);
  if (!ReadsPairs(options)) return offpolicy::ComputeObjective(numbers.spans, options.objective);
  std::vector<double> reference;
  if (NeedsReference(options.preference.kind)) reference = ToDoubles(inputs.reference_logprobs);
  return ComputePairObjective({.tokens = numbers.spans,
                               .reference_logprobs = reference,
                               .mean_chosen_tokens = inputs.mean_chosen_tokens},
                              options.preference, pairs);
}

}  // namespace

at::Tensor PolicyRatio(const at::Tensor& target_logprobs, const at::Tensor& proximal_logprobs) {
  return ClampedExp(target_logprobs - proximal_logprobs.detach());
}

at::Tensor ReferenceKl(const at::Tensor& target_logprobs, const at::Tensor& reference_logprobs,
                       const at::Tensor& rho, const PolicyLossOptions& options) {
  const at::Tensor log_ratio = target_logprobs - reference_logprobs.detach();
  const at::Tensor estimate = Estimate(log_ratio, options.kl_estimator);
  if (!options.kl_ratio_weighted) return estimate;
  return (options.kl_estimator == KlEstimator::kK2 ? rho.detach() : rho) * estimate;
}

LossSums SumPolicyLoss(const LossInputs& inputs, const PolicyLossOptions& options) {
  const at::Tensor zero = at::zeros({}, at::kFloat);
  // What is not in the loss may hold anything, infinities included: it is replaced, not multiplied
  // by zero.
  const auto kept = [&](const at::Tensor& x) { return at::where(inputs.kept, x, zero); };
  const at::Tensor target = kept(inputs.target_logprobs);
  const at::Tensor weight = kept(inputs.weight).detach();
  const at::Tensor scale = kept(inputs.scale).detach();
  const at::Tensor ratio = PolicyRatio(target, kept(inputs.proximal_logprobs));
  LossSums sums;
  const offpolicy::Objective objective = ObjectiveOf(inputs, options, sums.pairs);
  const at::Tensor value = ToFloatTensor(objective.value), slope = ToFloatTensor(objective.slope);

  sums.policy = (scale * value).sum();
  // The difference is exactly 0: it adds the gradient and leaves the value.
  sums.total = sums.policy + (scale * slope * (target - target.detach())).sum();
  sums.kl = sums.k1 = sums.k2 = sums.k3 = zero;
  if (inputs.reference_logprobs.defined()) {
    const at::Tensor reference = kept(inputs.reference_logprobs);
    sums.kl = (scale * ReferenceKl(target, reference, weight * ratio, options)).sum();
    if (options.kl_coefficient > 0) sums.total = sums.total + options.kl_coefficient * sums.kl;
    const at::Tensor log_ratio = (target - reference).detach();
    sums.k1 = Estimate(log_ratio, KlEstimator::kK1).sum();
    sums.k2 = Estimate(log_ratio, KlEstimator::kK2).sum();
    sums.k3 = Estimate(log_ratio, KlEstimator::kK3).sum();
  }
  if (options.entropy_coefficient > 0) {
    sums.total = sums.total - options.entropy_coefficient * (scale * kept(inputs.entropies)).sum();
  }
  sums.kl = sums.kl.detach();
  if (inputs.start_logprobs.defined()) {
    const at::Tensor log_ratio = (target - kept(inputs.start_logprobs)).detach();
    sums.proximal_kl = Estimate(-log_ratio, KlEstimator::kK3).sum().item<double>();
  }
  const at::Tensor r = ratio.detach();
  sums.ratio_sum = at::where(inputs.kept, r, zero).sum();
  sums.ratio_max = at::where(inputs.kept, r, zero).max();
  sums.clip_low = objective.num_clip_low;
  sums.clip_high = objective.num_clip_high;
  sums.dual_clip = objective.num_dual_clip;
  return sums;
}

void AppendSecondMoments(const LossInputs& inputs, std::vector<double>& squares) {
  offpolicy::AppendSecondMoments(Numbers(inputs).spans, squares);
}

}  // namespace tandem::trainer
