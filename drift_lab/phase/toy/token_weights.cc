#include "drift_lab/phase/toy/token_weights.h"

#include <algorithm>
#include <array>

#include "common/offpolicy/correction_method.h"

namespace tandem::drift {
namespace {

constexpr std::array kAllMethods = {
    Method::kNone,        Method::kTokenTis,      Method::kSequenceTis,
    Method::kSequenceMis, Method::kIcePop,        Method::kTopr,
    Method::kBypassClip,  Method::kGeometricMask, Method::kSignMask};

constexpr std::array<const char*, kAllMethods.size()> kMethodNames = {
    "none", "token_tis", "sequence_tis",   "sequence_mis", "icepop",
    "topr", "ppo_clip",  "geometric_mask", "sign_mask"};

// The settings of a run with that method.
constexpr std::array<const char*, kAllMethods.size()> kSettings = {
    "correction.kind=off",
    "correction.kind=token_tis correction.max_weight=2",
    "correction.kind=sequence_tis correction.max_weight=2",
    "correction.kind=sequence_mask correction.min_weight=0.5 correction.max_weight=2",
    "correction.kind=token_mask correction.min_weight=0.5 correction.max_weight=5",
    "correction.mode=bypass loss.kind=topr",
    "correction.mode=bypass loss.clip_low=0.2 loss.clip_high=0.2",
    "correction.kind=off correction.geometric_min=0.9 correction.geometric_max=1.1",
    "correction.kind=sequence_mask correction.min_weight=0.5 correction.max_weight=2 "
    "correction.negative_only=true"};

const offpolicy::MethodOptions& OptionsOf(Method method) {
  static const std::vector<offpolicy::MethodOptions> options = [] {
    std::vector<offpolicy::MethodOptions> parsed;
    for (const char* const settings : kSettings) {
      parsed.push_back(offpolicy::ParseMethod(settings).value());
    }
    return parsed;
  }();
  return options[static_cast<size_t>(method)];
}

}  // namespace

std::span<const Method> AllMethods() { return kAllMethods; }

const char* MethodName(Method method) { return kMethodNames[static_cast<size_t>(method)]; }

std::optional<Method> MethodNamed(std::string_view name) {
  const auto found = std::ranges::find(kAllMethods, name, MethodName);
  return found == kAllMethods.end() ? std::nullopt : std::optional(*found);
}

TokenWeights ComputeWeights(Method method, std::span<const float> target_logprobs,
                            std::span<const float> behaviour_logprobs,
                            std::span<const int32_t> sequence, std::span<const float> advantages) {
  const size_t count = target_logprobs.size();
  const std::vector<double> target(target_logprobs.begin(), target_logprobs.end());
  const std::vector<double> behaviour(behaviour_logprobs.begin(), behaviour_logprobs.end());
  const std::vector<int64_t> completion(sequence.begin(), sequence.end());
  const std::vector<uint8_t> mask(count, 1);
  // The slope of a token is -weight x advantage, so with advantages of size 1 it gives the weight.
  std::vector<double> signs(count);
  for (size_t t = 0; t < count; ++t) signs[t] = advantages[t] >= 0 ? 1 : -1;
  const offpolicy::MethodResult result = offpolicy::EvaluateMethod({.behaviour_logprobs = behaviour,
                                                                    .proximal_logprobs = target,
                                                                    .target_logprobs = target,
                                                                    .advantages = signs,
                                                                    .mask = mask,
                                                                    .completion = completion},
                                                                   OptionsOf(method))
                                             .value();
  TokenWeights out{std::vector<float>(count), std::vector<uint8_t>(count)};
  for (size_t t = 0; t < count; ++t) {
    out.weight[t] = static_cast<float>(-result.objective.slope[t] * signs[t]);
    out.kept[t] = out.weight[t] != 0;
  }
  return out;
}

}  // namespace tandem::drift
