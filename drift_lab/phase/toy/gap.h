// Gap: what stands between the policy that learns and the one that samples, injected with a known
// size. The behaviour log-probs a run records are always the true ones of what was drawn: the toy
// is about what a gap does to learning, not about records that lie.
//
//   mu = kind(log softmax(logits of the weights `lag` updates ago))
#pragma once

#include <cstdint>
#include <vector>

#include "drift_lab/phase/toy/context_table.h"
#include "drift_lab/phase/toy/random_numbers.h"
#include "drift_lab/phase/toy/task.h"

namespace tandem::drift {

enum class GapKind {
  kNone,
  kLogitNoise,     // mu ~ pi e^(strength n), n standard normal, drawn anew for every token
  kUniformTokens,  // a share `strength` of the tokens, chosen by lot: mu = 1 / 16; elsewhere mu =
                   // pi
  kTemperature,    // mu ~ pi^(1 / strength)
  kTilt,           // mu ~ pi e^(s d) with KL(mu || pi) given; see Direction and KlBudget
};

// d of a tilt, over the tokens of a context.
enum class Direction {
  kFreshNoise,      // normal, anew for every token drawn: zero mean
  kFrozenNoise,     // normal, one draw a context, the same in all steps: zero mean over contexts
  kTokenBias,       // normal, one draw a token of the vocabulary, the same in all contexts: a bias
  kTowardsReward,   // the string's token: samples more of what is rewarded
  kAwayFromReward,  // minus that
  kRareTokens,      // the 8 least likely tokens of the context
  kSharpen,         // log pi: a temperature below 1
  kFlatten,         // -log pi: a temperature above 1
};

enum class KlBudget {
  kConstant,       // KL(mu || pi) = strength in every context
  kByUncertainty,  // KL(mu || pi) = strength (1 - sum pi^2): as an error of the logits of one size
                   // makes it
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

  // Samples from what `sampled` holds from now on; `sampled` must outlive the answers.
  void Use(ContextTable& sampled, uint32_t step);

  // log mu where completion number `row` of this step stands. Valid until the next call.
  const Distribution& At(int context_index, uint32_t row);

 private:
  bool IsFresh() const;  // differs from token to token in one context
  Distribution Make(const Evaluation& policy, const Context& context, uint32_t row) const;
  Distribution TiltDirection(const Evaluation& policy, const Context& context, uint32_t row) const;

  const Gap gap_;
  const Task& task_;
  const Draws per_token_, fixed_;
  ContextTable* sampled_ = nullptr;
  uint32_t step_ = 0;
  Distribution fresh_;
  std::vector<Distribution> made_;  // by context, where IsFresh is false
  std::vector<uint32_t> made_at_;   // step + 1 of it
};

}  // namespace tandem::drift
