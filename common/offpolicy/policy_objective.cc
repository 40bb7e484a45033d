#include "common/offpolicy/policy_objective.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "common/base/check.h"
#include "common/offpolicy/correction.h"

// One pass gathers sums per completion, for the objectives whose ratio is that of a whole
// completion. A second pass computes the value and the derivative of each token. Derivatives are
// written out instead of found by autograd, because the trainer needs the slope with respect to log
// pi_target only, and because this makes "detached" explicit: objectives with sg() use their
// coefficient as the slope.
//
// Invariant: the slope of token t is the derivative of the sum of all values, and not of value t
// alone. The two differ for gspo, where the log-prob of one token moves the ratio of its whole
// completion.
namespace tandem::offpolicy {
namespace {

// The ceiling on the detached ratio in DPPO's reference code (verl, dppo_tv and dppo_kl).
constexpr double kDppoMaxRatio = 20;

double LogRatio(const ObjectiveInputs& in, size_t t) {
  return in.target_logprobs[t] - in.centre_logprobs[t];
}

// exp(log_ratio) with a clamped exponent, and its derivative by log_ratio.
struct Ratio {
  double value, slope;
};
Ratio ClampedRatio(double log_ratio) {
  const double value = std::exp(std::clamp(log_ratio, -kMaxLogRatio, kMaxLogRatio));
  return {value, std::abs(log_ratio) <= kMaxLogRatio ? value : 0};
}

// The value of a token for w = 1, and its derivative by the logarithm of its ratio.
struct Term {
  double value = 0, slope = 0;
};

// The bounds that were active for a term.
struct Sides {
  bool low = false, high = false, dual = false;
};

Term ClippedTerm(const Ratio& r, double advantage, double low, double high, double dual_clip,
                 Sides& sides) {
  const double clipped = std::clamp(r.value, 1 - low, 1 + high) * advantage;
  Term term{-r.value * advantage, -r.slope * advantage};
  if (clipped < r.value * advantage) term = {-clipped, 0};
  sides.low = advantage < 0 && r.value < 1 - low;
  sides.high = advantage > 0 && r.value > 1 + high;
  sides.dual = dual_clip > 0 && advantage < 0 && r.value > dual_clip;
  if (sides.dual) term = {-dual_clip * advantage, 0};
  return term;
}

Term SapoTerm(const Ratio& r, double advantage, const ObjectiveOptions& options) {
  const double tau = advantage > 0 ? options.sapo_tau_positive : options.sapo_tau_negative;
  const double gate = 1 / (1 + std::exp(-tau * (r.value - 1)));
  return {-advantage * 4 / tau * gate, -advantage * 4 * gate * (1 - gate) * r.slope};
}

// KL divergence of Bernoulli variables with probabilities e^log_p and e^log_q.
double BinaryKl(double log_p, double log_q) {
  // abs, because the complement of a probability of 1 must be 0 and not -0, which would make the
  // ratio below -infinity.
  const double not_p = std::abs(std::expm1(log_p)), not_q = std::abs(std::expm1(log_q));
  const double rest = not_p > 0 ? not_p * std::log(not_p / not_q) : 0;
  return std::exp(log_p) * (log_p - log_q) + rest;
}

// Whether DPPO masks the token, on the side that the sign of the advantage selects.
Sides DppoMask(double target, double centre, double advantage, const ObjectiveOptions& options) {
  const double moved = std::exp(target) - std::exp(centre);
  const bool far = options.kind == ObjectiveKind::kDppoTv
                       ? std::abs(moved) > options.dppo_max_tv
                       : BinaryKl(centre, target) > options.dppo_max_kl;
  if (advantage > 0) return {.high = far && moved > 0};
  return {.low = far && moved < 0};
}

Term PenaltyTerm(double log_ratio, double advantage, double beta) {
  const Ratio r = ClampedRatio(log_ratio);
  return {-(r.value * advantage - beta * (r.value - 1 - log_ratio)),
          -(r.slope * advantage - beta * (r.slope - 1))};
}

double VespoCoefficient(double log_ratio, double advantage, const ObjectiveOptions& options) {
  const bool positive = advantage >= 0;
  const double k = positive ? options.vespo_k_positive : options.vespo_k_negative;
  const double lambda = positive ? options.vespo_lambda_positive : options.vespo_lambda_negative;
  const double log_w = std::clamp(log_ratio, -kMaxLogRatio, kMaxLogRatio);
  return std::exp(k * log_w + lambda * (1 - std::exp(log_w)));
}

struct CompletionRatios {
  double log_ratio = 0, weight = 0;
  int64_t num_tokens = 0;
};

bool CanClip(double log_ratio, double advantage) {
  return (advantage > 0 && log_ratio > 0) || (advantage < 0 && log_ratio < 0);
}

// The cutoff of m2po; `squares` are sorted.
double MaskCutoff(const std::vector<double>& squares, double max_mean) {
  double sum = 0;
  size_t kept = 0;  // means of sorted prefixes do not decrease, so stop at the first too large
  while (kept < squares.size() && sum + squares[kept] <= max_mean * static_cast<double>(kept + 1)) {
    sum += squares[kept++];
  }
  if (kept == squares.size()) return std::numeric_limits<double>::infinity();
  while (kept > 0 && squares[kept - 1] == squares[kept])
    --kept;  // equal squares are dropped together
  return kept == 0 ? squares[0] / 2 : (squares[kept - 1] + squares[kept]) / 2;
}

// The cutoff of m2po_clip; `squares` are sorted. The authors' repository rounds tau down to the
// next abs(log r) that occurs, which clips the same tokens.
double ClipCutoff(const std::vector<double>& squares, double max_mean) {
  const double target = max_mean * static_cast<double>(squares.size());
  double sum = 0;  // sum of the squares that are not clipped
  for (size_t k = 0; k < squares.size(); ++k) {
    const auto rest = static_cast<double>(squares.size() - k);
    if (sum + squares[k] * rest > target) return (target - sum) / rest;
    sum += squares[k];
  }
  return std::numeric_limits<double>::infinity();
}

// The state of one call of ComputeObjective.
struct ObjectiveComputation {
  const ObjectiveInputs& in;
  const ObjectiveOptions& options;
  std::map<int64_t, CompletionRatios> completions = {};
  double cutoff = 0;  // for m2po and m2po_clip

  void Prepare() {
    for (size_t t = 0; t < in.kept.size(); ++t) {
      if (!in.kept[t]) continue;
      CompletionRatios& sums = completions[in.completion[t]];
      sums.log_ratio += LogRatio(in, t);
      sums.weight += in.weight[t];
      ++sums.num_tokens;
    }
    if (!IsM2po(options.kind)) return;
    std::vector<double> squares;
    if (!in.second_moment_cutoff.has_value()) AppendSecondMoments(in, squares);
    cutoff = in.second_moment_cutoff.value_or(SecondMomentCutoff(std::move(squares), options));
  }

  // The detached factor in front of A log pi_target.
  double Coefficient(size_t t, const CompletionRatios& sums, Sides& sides) const {
    const double advantage = in.advantages[t], r = ClampedRatio(LogRatio(in, t)).value;
    switch (options.kind) {
      case ObjectiveKind::kCispo:
        sides.high = r > options.cispo_max;
        return std::min(r, options.cispo_max);
      case ObjectiveKind::kTopr:
        if (advantage >= 0) return 1;
        sides.high = sums.log_ratio > 0;
        return std::min(ClampedRatio(sums.log_ratio).value, 1.0);
      case ObjectiveKind::kVespo:
        return VespoCoefficient(sums.log_ratio, advantage, options);
      case ObjectiveKind::kPolicyGradient:
        return 1;
      default:
        sides = DppoMask(in.target_logprobs[t], in.centre_logprobs[t], advantage, options);
        return sides.low || sides.high ? 0 : std::min(r, kDppoMaxRatio);
    }
  }

  Term SecondMomentTerm(double log_ratio, double advantage, Sides& sides) const {
    const bool over = CanClip(log_ratio, advantage) && log_ratio * log_ratio > cutoff;
    sides = {.low = over && advantage < 0, .high = over && advantage > 0};
    const Ratio r = ClampedRatio(log_ratio);
    if (!over) return {-r.value * advantage, -r.slope * advantage};
    if (options.kind == ObjectiveKind::kM2po) return {};
    const double tau = std::sqrt(cutoff);
    return {-std::exp(advantage > 0 ? tau : -tau) * advantage, 0};
  }

  // Value and derivative of token t, with its weight.
  Term WeightedTerm(size_t t, Sides& sides) const {
    const CompletionRatios& sums = completions.at(in.completion[t]);
    const double a = in.advantages[t], w = in.weight[t];
    Term term;
    switch (options.kind) {
      case ObjectiveKind::kClip:
        term = ClippedTerm(ClampedRatio(LogRatio(in, t)), a, options.clip_low, options.clip_high,
                           options.dual_clip, sides);
        break;
      case ObjectiveKind::kSapo:
        term = SapoTerm(ClampedRatio(LogRatio(in, t)), a, options);
        break;
      case ObjectiveKind::kPenalty:
        term = PenaltyTerm(LogRatio(in, t), a, options.penalty_coefficient);
        break;
      case ObjectiveKind::kM2po:
      case ObjectiveKind::kM2poClip:
        term = SecondMomentTerm(LogRatio(in, t), a, sides);
        break;
      case ObjectiveKind::kGspo: {
        const auto n = static_cast<double>(sums.num_tokens);
        term = ClippedTerm(ClampedRatio(sums.log_ratio / n), a, options.gspo_clip_low,
                           options.gspo_clip_high, 0, sides);
        // The log-prob of one token moves log s by 1 / n of its change, and with it the values of
        // all n tokens.
        return {w * term.value, sums.weight / n * term.slope};
      }
      default: {
        const double slope = -Coefficient(t, sums, sides) * a;
        term = {slope * in.target_logprobs[t], slope};
      }
    }
    return {w * term.value, w * term.slope};
  }
};

}  // namespace

Objective ComputeObjective(const ObjectiveInputs& inputs, const ObjectiveOptions& options) {
  TANDEM_CHECK(options.kind != ObjectiveKind::kPreference);
  Objective result{.value = std::vector<double>(inputs.kept.size()),
                   .slope = std::vector<double>(inputs.kept.size())};
  ObjectiveComputation computation{inputs, options};
  computation.Prepare();
  for (size_t t = 0; t < inputs.kept.size(); ++t) {
    if (!inputs.kept[t]) continue;
    Sides sides;
    const Term term = computation.WeightedTerm(t, sides);
    result.value[t] = term.value;
    result.slope[t] = term.slope;
    result.num_clip_low += sides.low;
    result.num_clip_high += sides.high;
    result.num_dual_clip += sides.dual;
  }
  return result;
}

void AppendSecondMoments(const ObjectiveInputs& inputs, std::vector<double>& squares) {
  for (size_t t = 0; t < inputs.kept.size(); ++t) {
    if (!inputs.kept[t]) continue;
    const double log_ratio = LogRatio(inputs, t);
    if (CanClip(log_ratio, inputs.advantages[t])) squares.push_back(log_ratio * log_ratio);
  }
}

double SecondMomentCutoff(std::vector<double> squares, const ObjectiveOptions& options) {
  std::ranges::sort(squares);
  return options.kind == ObjectiveKind::kM2poClip ? ClipCutoff(squares, options.m2po_max)
                                                  : MaskCutoff(squares, options.m2po_max);
}

LossScales ComputeLossScales(std::span<const uint8_t> counted, std::span<const int64_t> completion,
                             int64_t num_completions, const ObjectiveOptions& options) {
  LossScales result;
  result.scale.assign(counted.begin(), counted.end());
  std::map<int64_t, int64_t> tokens;  // tokens of each completion
  int64_t num_tokens = 0;
  for (size_t t = 0; t < counted.size(); ++t) {
    if (!counted[t]) continue;
    ++tokens[completion[t]];
    ++num_tokens;
  }
  switch (options.normalisation) {
    case Normalisation::kToken:
      result.denominator = static_cast<double>(num_tokens);
      break;
    case Normalisation::kConstant:
      result.denominator = static_cast<double>(num_completions * options.constant_length);
      break;
    case Normalisation::kSequence:
      for (size_t t = 0; t < counted.size(); ++t) {
        if (counted[t]) result.scale[t] = 1.0 / static_cast<double>(tokens[completion[t]]);
      }
      result.denominator = static_cast<double>(tokens.size());
  }
  return result;
}

}  // namespace tandem::offpolicy
