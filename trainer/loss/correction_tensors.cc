#include "trainer/loss/correction_tensors.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <vector>

namespace tandem::trainer {

absl::StatusOr<offpolicy::Correction> CorrectMicrobatch(const Microbatch& micro,
                                                        const at::Tensor& proximal,
                                                        const offpolicy::CorrectionOptions& options,
                                                        int64_t completions_per_unit) {
  const std::vector<double> proximal_logprobs = ToDoubles(proximal);
  const std::vector<double> behaviour(micro.behaviour_logprobs.begin(),
                                      micro.behaviour_logprobs.end());
  const std::vector<double> advantages(micro.advantages.begin(), micro.advantages.end());
  std::vector<int64_t> unit(micro.completion.begin(), micro.completion.end());
  for (int64_t& number : unit) number /= completions_per_unit;
  return offpolicy::ComputeCorrection({.proximal_logprobs = proximal_logprobs,
                                       .behaviour_logprobs = behaviour,
                                       .mask = micro.loss_mask,
                                       .completion = unit,
                                       .advantages = advantages},
                                      options);
}

CorrectionTensors MakeTensors(const offpolicy::Correction& correction) {
  at::Tensor kept = at::empty({static_cast<int64_t>(correction.kept.size())}, at::kBool);
  std::ranges::transform(correction.kept, kept.data_ptr<bool>(),
                         [](uint8_t value) { return value != 0; });
  return {ToFloatTensor(correction.weight), kept, ToFloatTensor(correction.centre_logprobs)};
}

std::vector<double> ToDoubles(const at::Tensor& x) {
  const at::Tensor numbers = x.detach().to(at::kCPU, at::kDouble).contiguous();
  const double* begin = numbers.const_data_ptr<double>();
  return {begin, begin + numbers.numel()};
}

at::Tensor ToFloatTensor(std::span<const double> values) {
  at::Tensor result = at::empty({static_cast<int64_t>(values.size())}, at::kFloat);
  std::ranges::transform(values, result.data_ptr<float>(),
                         [](double value) { return static_cast<float>(value); });
  return result;
}

}  // namespace tandem::trainer
