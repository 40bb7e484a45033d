#include "drift_lab/referee/verdict.h"

#include <algorithm>
#include <cmath>

namespace tandem::drift {
namespace {

// What is left is what rounding gives, and the strength is right.
bool LeavesRounding(const RefereeCause& measured, const SideClaims& claims) {
  const offpolicy::Interval& strength = measured.explained.coefficient;
  return measured.left.as_rounding() && measured.explained.share.low > 0.5 && strength.low < 1.1 &&
         strength.high > 0.9 && strength.value > 0.85 && strength.value < 1.18 &&
         (!ClaimsFloat32(claims) || measured.left.goes_with_bf16());
}

// A fault smaller than the noise is known by its strength, which no noise has: weights that are at hand
// are played as they are, and the coefficient is 1.
bool BelowNoise(const Candidate& candidate) {
  const RefereeCause& measured = candidate.measured;
  const offpolicy::Interval& strength = measured.explained.coefficient;
  return measured.left.as_rounding() &&
         candidate.cause.find("other_weights") != std::string::npos &&
         measured.explained.share.low > 0.02 && strength.low > 0.6 && strength.high < 1.4 &&
         strength.low < 1 && strength.high > 1;
}

// Hardly anything is left, and the strength is right: what the rest is does not matter.
bool ExplainsNearlyAll(const RefereeCause& measured) {
  const offpolicy::Interval& strength = measured.explained.coefficient;
  return measured.explained.share.low > 0.97 && strength.low > 0.9 && strength.high < 1.1 &&
         measured.left.in_scale < 3;
}

// A rounding need not be played number by number alike to be known.
bool IsRounded(const Candidate& candidate) {
  return candidate.rounds && candidate.measured.explained.share.low > 0.3 &&
         candidate.measured.explained.correlation > 0.6;
}

// Weights leave their mark at full strength, and what is left has the size that rounding to int8 what
// the matrices multiply gives.
bool RoundsInputs(const Candidate& candidate) {
  const RefereeCause& measured = candidate.measured;
  if (measured.rounded_inputs <= 0) return false;
  const offpolicy::Interval& strength = measured.explained.coefficient;
  const double left = measured.left.in_scale / measured.rounded_inputs;
  const double error = 1 / std::sqrt(std::max<double>(1, measured.left.num_tokens));
  return measured.explained.share.low > 0 && strength.low > 0.4 && strength.high < 1.6 &&
         strength.value > 0.6 && strength.value < 1.4 &&
         measured.explained.correlation > 6 * error && left > 0.75 && left < 1.33;
}

}  // namespace

bool ClaimsFloat32(const SideClaims& claims) {
  return claims.dtype == "float32" || claims.dtype == "fp32" || claims.dtype == "f32";
}

void Decide(std::span<const double> gap, const TokenSet& tokens, const SideClaims& claims,
            std::span<const Candidate> verified, SideReport& report) {
  report.status = SideStatus::kUnknown;
  if (verified.empty()) return;
  const Candidate& best = verified.front();
  const RefereeCause& measured = best.measured;
  report.causes = {measured};
  // What explains nearly all leaves nothing for a suspect that was not reached.
  const bool complete = report.num_left == 0 || measured.explained.share.low > 0.9;
  const bool below_noise = complete && BelowNoise(best);
  const bool rounds_inputs = complete && RoundsInputs(best);
  const bool named = measured.left.same() || below_noise || rounds_inputs ||
                     ExplainsNearlyAll(measured) ||
                     (complete && (LeavesRounding(measured, claims) || IsRounded(best)));
  if (!named) {
    if (!(measured.explained.share.low > 0)) report.causes.clear();  // nearest to nothing
    return;
  }
  report.status = SideStatus::kNamed;
  if (rounds_inputs) {
    report.causes.front().text += ", and what they multiply to int8";
  } else {
    report.causes.front().rounded_inputs = 0;
  }
  const double least = below_noise || rounds_inputs ? 0.0 : 0.05;
  for (const Candidate& rival : verified.subspan(1)) {
    if (rival.cause == best.cause) continue;
    const offpolicy::Interval better = ShareAdvantage(gap, best.predicted, rival.predicted, tokens);
    const bool as_good = measured.left.same() ? rival.measured.left.same() : !(better.low > least);
    if (!as_good) continue;
    report.status = SideStatus::kOneOf;
    report.causes.push_back(rival.measured);
  }
}

}  // namespace tandem::drift
