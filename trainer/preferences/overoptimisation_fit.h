// Fits of the scaling laws for reward model overoptimisation (Gao, Schulman and Hilton 2023, arXiv
// 2210.10760). Pure.
//
// Training against a proxy reward raises the true ("gold") reward R at first and lowers it later.
// As a function of d = sqrt(KL(target || reference)), and counted from R = 0 at d = 0,
//
//   best of n                R(d) = d (alpha - beta d)
//   reinforcement learning   R(d) = d (alpha - beta log d)
//
// Both are linear in alpha and beta, so least squares has a closed form.
#pragma once

#include <span>

#include "absl/status/statusor.h"

namespace tandem::trainer {

enum class OveroptimisationLaw { kBestOfN, kReinforcement };

struct OveroptimisationFit {
  double alpha = 0, beta = 0;
  double alpha_error = 0, beta_error = 0;  // standard errors, with n - 2 degrees of freedom
  double residual_squares = 0;             // sum of squares
  // The d >= 0 at which the gold reward is largest: alpha / (2 beta), or exp(alpha / beta - 1).
  // Infinite if the reward rises without end.
  double peak_distance = 0;
};

// The value of a law at d >= 0.
double GoldReward(OveroptimisationLaw law, double alpha, double beta, double d);

// Fits `rewards` [n], gold rewards minus that of the reference policy, at the KLs `kl_nats` [n].
//   INVALID_ARGUMENT  fewer than 3 points; a KL that is negative or not finite, a reward that is
//                     not finite (with its index); fewer than 2 different KLs above 0
absl::StatusOr<OveroptimisationFit> FitOveroptimisation(OveroptimisationLaw law,
                                                        std::span<const double> kl_nats,
                                                        std::span<const double> rewards);

// Both fits, and the law with the smaller sum of squared residuals. Both have two parameters, so
// this is also the choice of every information criterion. Errors are those of FitOveroptimisation.
struct OveroptimisationComparison {
  OveroptimisationFit best_of_n, reinforcement;
  OveroptimisationLaw better = OveroptimisationLaw::kBestOfN;
};
absl::StatusOr<OveroptimisationComparison> CompareOveroptimisation(std::span<const double> kl_nats,
                                                                   std::span<const double> rewards);

// KL(best of n || reference) = log n - (n - 1) / n, n >= 1 (Stiennon et al. 2020, arXiv 2009.01325,
// appendix G.3); an upper bound where completions can be equal (Beirami et al. 2024, arXiv
// 2401.01879).
double BestOfNKl(double n);

}  // namespace tandem::trainer
