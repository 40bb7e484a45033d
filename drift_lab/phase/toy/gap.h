// Gap: the training-inference mismatch of the toy, between the policy that learns and the one that
// samples, injected with a known size. The recorded behaviour log-probs are always the true ones of
// the distribution that was sampled: the toy is about the effect of a mismatch on learning, and not
// about wrong records.
//
//   mu = kind(log softmax(logits of the weights `lag` updates ago))
#pragma once

#include <cstdint>
#include <vector>

#include "drift_lab/phase/toy/policy.h"
#include "drift_lab/phase/toy/random_numbers.h"
#include "drift_lab/phase/toy/task.h"

namespace tandem::drift {

enum class GapKind {
  kNone,
  kLogitNoise,     // mu ~ pi e^(strength n), n standard normal and independent for every token
  kUniformTokens,  // mu = 1 / 16 for a random share `strength` of the tokens, and pi for the others
  kTemperature,    // mu ~ pi^(1 / strength)
  kTilt,           // mu ~ pi e^(s d) with KL(mu || pi) given; see Direction and KlBudget
};

// The direction d of a tilt, over the tokens of a context.
enum class Direction {
  kFreshNoise,      // normal, independent for every sampled token: zero mean
  kFrozenNoise,     // normal, fixed for a context in all steps: zero mean over contexts
  kTokenBias,       // normal, fixed for a token of the vocabulary in all contexts: a bias
  kTowardsReward,   // the token of the rewarded string: samples it more often
  kAwayFromReward,  // the opposite
  kRareTokens,      // the 8 least likely tokens of the context
  kSharpen,         // log pi: a temperature below 1
  kFlatten,         // -log pi: a temperature above 1
};

enum class KlBudget {
  kConstant,       // KL(mu || pi) = strength in every context
  kByUncertainty,  // KL(mu || pi) = strength (1 - sum pi^2), as an error of the logits of a fixed
                   // size gives
};

struct Gap {
  int lag = 0;
  GapKind kind = GapKind::kNone;
  double strength = 0;
  Direction direction = Direction::kFreshNoise;
  KlBudget budget = KlBudget::kConstant;
};

// The behaviour policy of one run. Thread-compatible.
class BehaviourPolicy {
 public:
  // `task` must outlive it.
  BehaviourPolicy(const Gap& gap, const Task& task, uint64_t seed);

  // From now on, the gap is to the policy in `sampled`, which must outlive the results.
  void Use(ContextTable& sampled, uint32_t step);

  // log mu of a context, for completion number `row` of this step. Valid until the next call.
  const Distribution& At(int context_index, uint32_t row);

 private:
  bool IsFresh() const;  // true if mu differs from token to token in the same context
  Distribution Make(const Evaluation& policy, const Context& context, uint32_t row) const;
  Distribution TiltDirection(const Evaluation& policy, const Context& context, uint32_t row) const;

  const Gap gap_;
  const Task& task_;
  const RandomNumbers per_token_, fixed_;
  ContextTable* sampled_ = nullptr;
  uint32_t step_ = 0;
  Distribution fresh_;
  std::vector<Distribution> made_;  // by context, if IsFresh is false
  std::vector<uint32_t> made_at_;   // by context: the step of made_, plus 1
};

// Tilt: the family mu(s) ~ p e^(s d) of a distribution p and a direction d over the vocabulary. It
// gives gaps of different kinds the same KL(mu || p), so that they can be compared.
//
//   KL(s) = s E_s[d] - log sum_a p(a) e^(s d(a)),   dKL/ds = s Var_s(d),   s >= 0
//
// Invariant: KL grows with s towards -log p(tokens with the largest d), its least upper bound.
struct Tilted {
  Distribution logprobs;
  double scale = 0;  // s
  double slope = 0;  // dKL/ds
  double kl = 0;     // the KL reached; less than asked for if the direction's bound is lower
};

// mu(s) itself.
Tilted TiltBy(const Distribution& logprobs, const Distribution& direction, double scale);

// mu(s) with KL(mu || p) = kl to within a relative 1e-6. If the direction cannot reach it, mu(s)
// with the largest s tried, at which s times the range of d is 1e4: tokens that do not have the
// largest d are then never sampled. kl 0, or a direction that is constant, gives p.
Tilted TiltToKl(const Distribution& logprobs, const Distribution& direction, double kl);

}  // namespace tandem::drift
