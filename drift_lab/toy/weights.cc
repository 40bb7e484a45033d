#include "drift_lab/toy/weights.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace tandem::drift {
namespace {

constexpr std::array kAllMethods = {
    Method::kNone,        Method::kTokenTis,      Method::kSequenceTis,
    Method::kSequenceMis, Method::kIcePop,        Method::kTopr,
    Method::kBypassClip,  Method::kGeometricMask, Method::kSignMask};

constexpr std::array<const char*, kAllMethods.size()> kNames = {
    "none", "token_tis", "sequence_tis",   "sequence_mis", "icepop",
    "topr", "ppo_clip",  "geometric_mask", "sign_mask"};

struct Ratios {
  double token;      // w
  double sequence;   // W
  double geometric;  // W^(1/tokens)
};

// What a method makes of one token: its weight, or nothing when it drops the token.
std::optional<double> WeightOf(Method method, const Ratios& r, double advantage) {
  const auto if_within = [](double value, double low, double high,
                            double weight) -> std::optional<double> {
    if (value < low || value > high) return std::nullopt;
    return weight;
  };
  switch (method) {
    case Method::kNone:
      return 1;
    case Method::kTokenTis:
      return std::min(r.token, 2.0);
    case Method::kSequenceTis:
      return std::min(r.sequence, 2.0);
    case Method::kSequenceMis:
      return if_within(r.sequence, 0.5, 2, r.sequence);
    case Method::kIcePop:
      return if_within(r.token, 0.5, 5, r.token);
    case Method::kTopr:
      return advantage >= 0 ? 1 : std::min(r.sequence, 1.0);
    case Method::kBypassClip:
      return advantage >= 0 ? if_within(r.token, 0, 1.2, r.token)
                            : if_within(r.token, 0.8, INFINITY, r.token);
    case Method::kGeometricMask:
      return if_within(r.geometric, 0.9, 1.1, 1);
    case Method::kSignMask:
      return advantage >= 0 ? std::min(r.sequence, 2.0) : if_within(r.sequence, 0.5, 2, r.sequence);
  }
  return std::nullopt;
}

double Ratio(double log_ratio) { return std::exp(std::clamp(log_ratio, -20.0, 20.0)); }

}  // namespace

std::span<const Method> AllMethods() { return kAllMethods; }

const char* MethodName(Method method) { return kNames[static_cast<size_t>(method)]; }

std::optional<Method> MethodNamed(std::string_view name) {
  for (const Method method : kAllMethods) {
    if (MethodName(method) == name) return method;
  }
  return std::nullopt;
}

TokenWeights ComputeWeights(Method method, std::span<const float> target_logprobs,
                            std::span<const float> behaviour_logprobs,
                            std::span<const int32_t> sequence, std::span<const float> advantages) {
  const size_t count = target_logprobs.size();
  const auto delta = [&](size_t t) {
    return static_cast<double>(target_logprobs[t]) - static_cast<double>(behaviour_logprobs[t]);
  };
  TokenWeights out{std::vector<float>(count), std::vector<uint8_t>(count)};
  for (size_t begin = 0, end = 0; begin < count; begin = end) {
    double sum = 0;
    while (end < count && sequence[end] == sequence[begin]) sum += delta(end++);
    for (size_t t = begin; t < end; ++t) {
      const Ratios ratios{Ratio(delta(t)), Ratio(sum),
                          Ratio(sum / static_cast<double>(end - begin))};
      const std::optional<double> weight = WeightOf(method, ratios, advantages[t]);
      out.weight[t] = static_cast<float>(weight.value_or(0));
      out.kept[t] = weight.has_value();
    }
  }
  return out;
}

}  // namespace tandem::drift
