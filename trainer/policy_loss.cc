#include "trainer/policy_loss.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <map>

namespace tandem::trainer {
namespace {

constexpr double kMaxLogRatio = 20;

at::Tensor ClampedExp(const at::Tensor& exponent) {
  return at::exp(at::clamp(exponent, -kMaxLogRatio, kMaxLogRatio));
}

at::Tensor Estimate(const at::Tensor& log_ratio, KlEstimator estimator) {
  switch (estimator) {
    case KlEstimator::kK1: return log_ratio;
    case KlEstimator::kK2: return log_ratio * log_ratio / 2;
    case KlEstimator::kK3: break;
  }
  return ClampedExp(-log_ratio) - 1 + log_ratio;
}

at::Tensor Count(const at::Tensor& selected) { return selected.sum(); }

}  // namespace

at::Tensor PolicyRatio(const at::Tensor& target_logprobs, const at::Tensor& proximal_logprobs) {
  return ClampedExp(target_logprobs - proximal_logprobs.detach());
}

at::Tensor ClippedSurrogate(const at::Tensor& ratio, const at::Tensor& advantages,
                            const at::Tensor& weight, const PolicyLossOptions& options) {
  const at::Tensor clipped = at::clamp(ratio, 1 - options.clip_low, 1 + options.clip_high);
  at::Tensor objective = at::minimum(ratio * advantages, clipped * advantages);
  if (options.dual_clip > 0) {
    const at::Tensor bounded = at::maximum(objective, options.dual_clip * advantages);
    objective = at::where(advantages < 0, bounded, objective);
  }
  return -weight.detach() * objective;
}

at::Tensor ReferenceKl(const at::Tensor& target_logprobs, const at::Tensor& reference_logprobs,
                       const at::Tensor& rho, const PolicyLossOptions& options) {
  const at::Tensor log_ratio = target_logprobs - reference_logprobs.detach();
  const at::Tensor estimate = Estimate(log_ratio, options.kl_estimator);
  if (!options.kl_ratio_weighted) return estimate;
  return (options.kl_estimator == KlEstimator::kK2 ? rho.detach() : rho) * estimate;
}

LossScales ComputeLossScales(const at::Tensor& counted, const at::Tensor& completion,
                             int64_t num_completions, const PolicyLossOptions& options) {
  const at::Tensor mask = counted.contiguous(), numbers = completion.contiguous();
  const bool* counts = mask.const_data_ptr<bool>();
  const int64_t* number = numbers.const_data_ptr<int64_t>();
  LossScales result{mask.to(at::kFloat)};
  std::map<int64_t, int64_t> tokens;  // of each completion
  int64_t num_tokens = 0;
  for (int64_t t = 0; t < mask.numel(); ++t) {
    if (!counts[t]) continue;
    ++tokens[number[t]];
    ++num_tokens;
  }
  switch (options.normalisation) {
    case Normalisation::kToken:
      result.denominator = static_cast<double>(num_tokens);
      break;
    case Normalisation::kConstant:
      result.denominator = static_cast<double>(num_completions * options.constant_length);
      break;
    case Normalisation::kSequence: {
      float* scale = result.scale.data_ptr<float>();
      for (int64_t t = 0; t < mask.numel(); ++t) {
        if (counts[t]) scale[t] = 1.0f / static_cast<float>(tokens[number[t]]);
      }
      result.denominator = static_cast<double>(tokens.size());
    }
  }
  return result;
}

LossSums SumPolicyLoss(const LossInputs& inputs, const PolicyLossOptions& options) {
  const at::Tensor zero = at::zeros({}, at::kFloat);
  // What is not in the loss may hold anything, infinities included: it is replaced, not multiplied
  // by zero.
  const auto kept = [&](const at::Tensor& x) { return at::where(inputs.kept, x, zero); };
  const at::Tensor target = kept(inputs.target_logprobs);
  const at::Tensor advantages = kept(inputs.advantages).detach();
  const at::Tensor weight = kept(inputs.weight).detach();
  const at::Tensor scale = kept(inputs.scale).detach();
  const at::Tensor ratio = PolicyRatio(target, kept(inputs.proximal_logprobs));

  LossSums sums;
  sums.policy = (scale * ClippedSurrogate(ratio, advantages, weight, options)).sum();
  sums.total = sums.policy;
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
  sums.policy = sums.policy.detach();
  sums.kl = sums.kl.detach();
  const at::Tensor r = ratio.detach();
  sums.ratio_sum = at::where(inputs.kept, r, zero).sum();
  sums.ratio_max = at::where(inputs.kept, r, zero).max();
  const at::Tensor bounded = options.dual_clip > 0
                                 ? at::logical_and(advantages < 0, r > options.dual_clip)
                                 : at::zeros_like(inputs.kept);
  sums.clip_low = Count(at::logical_and(advantages < 0, r < 1 - options.clip_low));
  sums.clip_high = Count(at::logical_and(advantages > 0, r > 1 + options.clip_high));
  sums.dual_clip = Count(bounded);
  return sums;
}

}  // namespace tandem::trainer
