// KL controllers: how the coefficient of a KL term follows the KL that it is to hold. Pure; used by
// train_step.cc after each train step.
#pragma once

#include <cstdint>

namespace tandem::trainer {

// For the KL to the reference policy in the reward (Ziegler et al. 2019, arXiv 1909.08593, section
// 2.2): coefficient (1 + clip(kl / target - 1, -0.2, 0.2) num_completions / horizon). `kl`: mean
// over the completions of the step, in nats of a whole completion.
double ProportionalCoefficient(double coefficient, double kl, double target,
                               int64_t num_completions, double horizon);

// For the KL to the proximal policy in loss.kind penalty (Schulman et al. 2017, arXiv 1707.06347,
// section 4): half of the coefficient where kl < target / 1.5, twice where kl > 1.5 target.
double DoublingCoefficient(double coefficient, double kl, double target);

}  // namespace tandem::trainer
