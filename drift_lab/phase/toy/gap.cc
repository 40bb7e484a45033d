#include "drift_lab/phase/toy/gap.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "drift_lab/phase/toy/tilt.h"

namespace tandem::drift {
namespace {

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

}  // namespace tandem::drift
