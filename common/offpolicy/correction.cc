#include "common/offpolicy/correction.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem::offpolicy {
namespace {

constexpr double kMaxLogRatio = 20;  // exp(20) is 5e8: beyond any weight that means something

absl::Status CheckVector(const at::Tensor& x, const char* name, at::ScalarType dtype,
                         int64_t length) {
  if (x.dim() == 1 && x.size(0) == length && x.scalar_type() == dtype) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("correction: ", name, " must be [", length, "] ", c10::toString(dtype), ", not ",
                   x.toString(), " of ", x.dim(), " dimensions and ", x.numel(), " elements"));
}

// Sums of one completion that the filters look at.
struct CompletionSums {
  double delta = 0;
  double smallest = 0;
  int64_t num_tokens = 0;
};

bool IsRefused(const CompletionSums& sums, const CorrectionOptions& options) {
  if (options.veto_threshold > 0 && sums.smallest < std::log(options.veto_threshold)) return true;
  if (options.geometric_z <= 0) return false;
  const auto n = static_cast<double>(sums.num_tokens);
  const double noise = options.geometric_noise;
  return std::abs(sums.delta / n + noise * noise / 2) > options.geometric_z * noise / std::sqrt(n);
}

struct Inputs {
  const float *proximal, *behaviour;
  const bool* mask;
  const int64_t* completion;
  int64_t length;

  bool IsFinite(int64_t t) const {
    return std::isfinite(proximal[t]) && std::isfinite(behaviour[t]);
  }
  double Delta(int64_t t) const {
    return static_cast<double>(proximal[t]) - static_cast<double>(behaviour[t]);
  }
};

std::map<int64_t, CompletionSums> SumCompletions(const Inputs& in) {
  std::map<int64_t, CompletionSums> completions;
  for (int64_t t = 0; t < in.length; ++t) {
    if (!in.mask[t] || !in.IsFinite(t)) continue;
    CompletionSums& sums = completions[in.completion[t]];
    sums.delta += in.Delta(t);
    sums.smallest = std::min(sums.smallest, in.Delta(t));
    ++sums.num_tokens;
  }
  return completions;
}

}  // namespace

absl::StatusOr<Correction> ComputeCorrection(const at::Tensor& proximal_logprobs,
                                             const at::Tensor& behaviour_logprobs,
                                             const at::Tensor& loss_mask,
                                             const at::Tensor& completion,
                                             const CorrectionOptions& options) {
  const int64_t length = loss_mask.numel();
  TANDEM_RETURN_IF_ERROR(CheckVector(proximal_logprobs, "proximal_logprobs", at::kFloat, length));
  TANDEM_RETURN_IF_ERROR(CheckVector(behaviour_logprobs, "behaviour_logprobs", at::kFloat, length));
  TANDEM_RETURN_IF_ERROR(CheckVector(loss_mask, "loss_mask", at::kBool, length));
  TANDEM_RETURN_IF_ERROR(CheckVector(completion, "completion", at::kLong, length));
  const at::NoGradGuard no_grad;
  const bool bypass = options.mode == CorrectionMode::kBypass;
  const at::Tensor behaviour = behaviour_logprobs.detach().contiguous();
  const at::Tensor proximal = bypass ? behaviour : proximal_logprobs.detach().contiguous();
  const at::Tensor mask = loss_mask.contiguous(), numbers = completion.contiguous();
  const Inputs in{proximal.const_data_ptr<float>(), behaviour.const_data_ptr<float>(),
                  mask.const_data_ptr<bool>(), numbers.const_data_ptr<int64_t>(), length};
  const bool corrects = options.mode == CorrectionMode::kDecoupled;
  const auto completions = SumCompletions(in);
  Correction result{at::empty_like(proximal), at::empty_like(mask), at::empty_like(proximal),
                    at::ones_like(proximal)};
  auto* weight = result.weight.data_ptr<float>();
  auto* kept = result.kept.data_ptr<bool>();
  auto* centre = result.proximal_logprobs.data_ptr<float>();
  auto* raw = result.raw_weight.data_ptr<float>();
  for (int64_t t = 0; t < length; ++t) {
    kept[t] = in.mask[t] && in.IsFinite(t) &&
              !(corrects && IsRefused(completions.at(in.completion[t]), options));
    centre[t] = kept[t] ? in.proximal[t] : 0.0f;
    weight[t] = kept[t] ? 1.0f : 0.0f;
    result.num_nonfinite += in.mask[t] && !in.IsFinite(t);
    result.num_rejected += in.mask[t] && !kept[t];
    if (!kept[t]) continue;
    const double ratio = std::exp(std::clamp(in.Delta(t), -kMaxLogRatio, kMaxLogRatio));
    raw[t] = static_cast<float>(ratio);
    if (!corrects || options.kind == CorrectionKind::kOff) continue;
    result.num_capped += ratio > options.max_weight;
    weight[t] = static_cast<float>(std::min(ratio, options.max_weight));
  }
  return result;
}

}  // namespace tandem::offpolicy
