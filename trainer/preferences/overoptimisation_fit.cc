#include "trainer/preferences/overoptimisation_fit.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "common/base/status_macros.h"

namespace tandem::trainer {
namespace {

// R = alpha d - beta d penalty(d); the factor of -beta.
double PenaltyTerm(OveroptimisationLaw law, double d) {
  if (d == 0) return 0;  // the limit of d log d
  return law == OveroptimisationLaw::kBestOfN ? d * d : d * std::log(d);
}

double PeakDistance(OveroptimisationLaw law, double alpha, double beta) {
  if (beta < 0 || (beta == 0 && alpha > 0)) return std::numeric_limits<double>::infinity();
  if (beta == 0) return 0;
  return law == OveroptimisationLaw::kBestOfN ? std::max(0.0, alpha / (2 * beta))
                                              : std::exp(alpha / beta - 1);
}

absl::Status CheckPoints(std::span<const double> kl_nats, std::span<const double> rewards) {
  if (kl_nats.size() != rewards.size() || kl_nats.size() < 3) {
    return InvalidArgument(
        "a fit of two parameters and their errors needs at least 3 points with a "
        "KL and a reward each; there are ",
        kl_nats.size(), " KLs and ", rewards.size(), " rewards");
  }
  for (size_t i = 0; i < kl_nats.size(); ++i) {
    if (std::isfinite(kl_nats[i]) && kl_nats[i] >= 0 && std::isfinite(rewards[i])) continue;
    return InvalidArgument("point ", i, " has the KL ", kl_nats[i], " and the reward ", rewards[i],
                           "; both must be finite, and the KL at least 0");
  }
  return absl::OkStatus();
}

// The sums of the normal equations for the columns x = d and y = -PenaltyTerm(d), each divided by
// its norm, which keeps the determinant between 0 and 1.
struct NormalEquations {
  double x_norm = 0, y_norm = 0, xy = 0, xr = 0, yr = 0;

  double determinant() const { return 1 - xy * xy; }
};

NormalEquations SumEquations(OveroptimisationLaw law, std::span<const double> kl_nats,
                             std::span<const double> rewards) {
  NormalEquations sums;
  for (const double kl : kl_nats) {
    const double d = std::sqrt(kl), y = PenaltyTerm(law, d);
    sums.x_norm += kl;
    sums.y_norm += y * y;
  }
  sums.x_norm = std::sqrt(sums.x_norm);
  sums.y_norm = std::sqrt(sums.y_norm);
  if (sums.x_norm == 0 || sums.y_norm == 0) return {.xy = 1};
  for (size_t i = 0; i < kl_nats.size(); ++i) {
    const double d = std::sqrt(kl_nats[i]);
    const double x = d / sums.x_norm, y = -PenaltyTerm(law, d) / sums.y_norm;
    sums.xy += x * y;
    sums.xr += x * rewards[i];
    sums.yr += y * rewards[i];
  }
  return sums;
}

}  // namespace

double GoldReward(OveroptimisationLaw law, double alpha, double beta, double d) {
  return alpha * d - beta * PenaltyTerm(law, d);
}

absl::StatusOr<OveroptimisationFit> FitOveroptimisation(OveroptimisationLaw law,
                                                        std::span<const double> kl_nats,
                                                        std::span<const double> rewards) {
  TANDEM_RETURN_IF_ERROR(CheckPoints(kl_nats, rewards));
  const NormalEquations sums = SumEquations(law, kl_nats, rewards);
  const double determinant = sums.determinant();
  if (determinant < 1e-12) {
    return InvalidArgument("the ", kl_nats.size(),
                           " points have fewer than 2 different KLs above 0, so alpha and beta "
                           "cannot be told apart: measure at more distances");
  }
  OveroptimisationFit fit;
  fit.alpha = (sums.xr - sums.xy * sums.yr) / determinant / sums.x_norm;
  fit.beta = (sums.yr - sums.xy * sums.xr) / determinant / sums.y_norm;
  for (size_t i = 0; i < kl_nats.size(); ++i) {
    const double residual =
        rewards[i] - GoldReward(law, fit.alpha, fit.beta, std::sqrt(kl_nats[i]));
    fit.residual_squares += residual * residual;
  }
  const double variance = fit.residual_squares / static_cast<double>(kl_nats.size() - 2);
  fit.alpha_error = std::sqrt(variance / determinant) / sums.x_norm;
  fit.beta_error = std::sqrt(variance / determinant) / sums.y_norm;
  fit.peak_distance = PeakDistance(law, fit.alpha, fit.beta);
  return fit;
}

absl::StatusOr<OveroptimisationComparison> CompareOveroptimisation(
    std::span<const double> kl_nats, std::span<const double> rewards) {
  OveroptimisationComparison result;
  TANDEM_ASSIGN_OR_RETURN(result.best_of_n,
                          FitOveroptimisation(OveroptimisationLaw::kBestOfN, kl_nats, rewards));
  TANDEM_ASSIGN_OR_RETURN(
      result.reinforcement,
      FitOveroptimisation(OveroptimisationLaw::kReinforcement, kl_nats, rewards));
  if (result.reinforcement.residual_squares < result.best_of_n.residual_squares) {
    result.better = OveroptimisationLaw::kReinforcement;
  }
  return result;
}

double BestOfNKl(double n) { return std::log(n) - (n - 1) / n; }

}  // namespace tandem::trainer
