#include "drift_lab/phase/toy/gap.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tandem::drift {
namespace {

constexpr double kLargestSpread = 1e4;
constexpr int kMaxIterations = 100;
constexpr double kRelativeTolerance = 1e-6;

double Budget(const Gap& gap, const Distribution& logprobs) {
  if (gap.budget == KlBudget::kConstant) return gap.strength;
  double sum_of_squares = 0;
  for (const double logprob : logprobs) sum_of_squares += std::exp(2 * logprob);
  return gap.strength * (1 - sum_of_squares);
}

Distribution LeastLikely(const Distribution& logprobs) {
  std::array<size_t, kTokens> order;
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return logprobs[a] < logprobs[b]; });
  Distribution direction{};
  for (size_t i = 0; i < kTokens / 2; ++i) direction[order[i]] = 1;
  return direction;
}

}  // namespace

BehaviourPolicy::BehaviourPolicy(const Gap& gap, const Task& task, uint64_t seed)
    : gap_(gap),
      task_(task),
      per_token_(seed, Purpose::kGapPerToken),
      fixed_(seed, Purpose::kGapFixed),
      made_(static_cast<size_t>(NumContexts(task.length()))),
      made_at_(made_.size(), 0) {}

void BehaviourPolicy::Use(ContextTable& sampled, uint32_t step) {
  sampled_ = &sampled;
  step_ = step;
}

bool BehaviourPolicy::IsFresh() const {
  return gap_.kind == GapKind::kLogitNoise || gap_.kind == GapKind::kUniformTokens ||
         (gap_.kind == GapKind::kTilt && gap_.direction == Direction::kFreshNoise);
}

const Distribution& BehaviourPolicy::At(int context_index, uint32_t row) {
  const Evaluation& policy = sampled_->At(context_index);
  if (gap_.kind == GapKind::kNone) return policy.logprobs;
  if (IsFresh()) return fresh_ = Make(policy, ContextOf(context_index), row);
  const auto index = static_cast<size_t>(context_index);
  if (made_at_[index] != step_ + 1) {
    made_[index] = Make(policy, ContextOf(context_index), row);
    made_at_[index] = step_ + 1;
  }
  return made_[index];
}

Distribution BehaviourPolicy::Make(const Evaluation& policy, const Context& context,
                                   uint32_t row) const {
  Distribution mu = policy.logits;
  switch (gap_.kind) {
    case GapKind::kNone:
      return policy.logprobs;
    case GapKind::kLogitNoise: {
      Distribution noise;
      per_token_.Normals(step_, row, static_cast<uint32_t>(context.position), noise);
      for (size_t a = 0; a < kTokens; ++a) mu[a] += gap_.strength * noise[a];
      return LogSoftmax(mu);
    }
    case GapKind::kUniformTokens: {
      const auto position = static_cast<uint32_t>(context.position);
      if (per_token_.Uniform(step_, row, position) >= gap_.strength) return policy.logprobs;
      mu.fill(-std::log(kTokens));
      return mu;
    }
    case GapKind::kTemperature:
      for (double& logit : mu) logit /= gap_.strength;
      return LogSoftmax(mu);
    case GapKind::kTilt:
      return TiltToKl(policy.logprobs, TiltDirection(policy, context, row),
                      Budget(gap_, policy.logprobs))
          .logprobs;
  }
  return mu;
}

Distribution BehaviourPolicy::TiltDirection(const Evaluation& policy, const Context& context,
                                            uint32_t row) const {
  Distribution direction{};
  const auto rewarded = static_cast<size_t>(task_.target(context.prompt, context.position));
  switch (gap_.direction) {
    case Direction::kFreshNoise:
      per_token_.Normals(step_, row, static_cast<uint32_t>(context.position), direction);
      break;
    case Direction::kFrozenNoise:
      fixed_.Normals(1, static_cast<uint32_t>(ContextIndex(context)), 0, direction);
      break;
    case Direction::kTokenBias:
      fixed_.Normals(0, 0, 0, direction);
      break;
    case Direction::kTowardsReward:
      direction[rewarded] = 1;
      break;
    case Direction::kAwayFromReward:
      direction[rewarded] = -1;
      break;
    case Direction::kRareTokens:
      return LeastLikely(policy.logprobs);
    case Direction::kSharpen:
      return policy.logprobs;
    case Direction::kFlatten:
      for (size_t a = 0; a < kTokens; ++a) direction[a] = -policy.logprobs[a];
      break;
  }
  return direction;
}

Tilted TiltBy(const Distribution& logprobs, const Distribution& direction, double scale) {
  Distribution logits;
  for (size_t a = 0; a < kTokens; ++a) logits[a] = logprobs[a] + scale * direction[a];
  const double largest = *std::max_element(logits.begin(), logits.end());
  double z = 0, first = 0, second = 0;
  for (size_t a = 0; a < kTokens; ++a) {
    const double p = std::exp(logits[a] - largest);
    z += p;
    first += p * direction[a];
    second += p * direction[a] * direction[a];
  }
  const double mean = first / z, log_z = largest + std::log(z);
  Tilted tilted{.scale = scale,
                .slope = scale * std::max(0.0, second / z - mean * mean),
                .kl = std::max(0.0, scale * mean - log_z)};
  for (size_t a = 0; a < kTokens; ++a) tilted.logprobs[a] = logits[a] - log_z;
  return tilted;
}

Tilted TiltToKl(const Distribution& logprobs, const Distribution& direction, double kl) {
  const auto [low_d, high_d] = std::minmax_element(direction.begin(), direction.end());
  if (kl <= 0 || *high_d == *low_d) return TiltBy(logprobs, direction, 0);
  double low = 0, high = kLargestSpread / (*high_d - *low_d);
  // Newton's method on sqrt(2 KL), which is nearly linear in s while s is small, with a bisection
  // step where Newton's leaves the bracket.
  double mean = 0, variance = 0;
  for (size_t a = 0; a < kTokens; ++a) mean += std::exp(logprobs[a]) * direction[a];
  for (size_t a = 0; a < kTokens; ++a) {
    variance += std::exp(logprobs[a]) * (direction[a] - mean) * (direction[a] - mean);
  }
  const double wanted = std::sqrt(2 * kl);
  double scale = variance > 0 ? std::min(wanted / std::sqrt(variance), high) : high;
  Tilted tilted;
  for (int i = 0; i < kMaxIterations; ++i) {
    tilted = TiltBy(logprobs, direction, scale);
    if (std::abs(tilted.kl - kl) <= kRelativeTolerance * kl) break;
    (tilted.kl < kl ? low : high) = scale;
    if (high - low <= 1e-12 * high) break;  // kl is above the direction's bound
    const double root = std::sqrt(2 * tilted.kl);
    const double next = scale + (wanted - root) * root / tilted.slope;
    scale = next > low && next < high ? next : (low + high) / 2;
  }
  return tilted;
}

}  // namespace tandem::drift
