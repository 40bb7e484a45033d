#include "trainer/preferences/preference_loss.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "common/base/check.h"
#include "trainer/preferences/log_sigmoid.h"

// Each loss is a function of two numbers, one per completion: its log ratio or its log-prob, summed
// or per token. Their definition is Score, the function is PairTerm, and the chain rule joins them
// in ComputePreferenceLoss.
namespace tandem::trainer {
namespace {

using Kind = PreferenceLossKind;

// orpo: a mean log-prob of 0 would make the odds infinite. An fp32 probability next to 1 differs
// from it by 2^-24, so nothing closer is known.
constexpr double kLargestMeanLogprob = -0x1p-24;

// A value and its derivatives by the scores of both completions.
struct Term {
  double value = 0, chosen_slope = 0, rejected_slope = 0;
};

// A function of h = beta (chosen - rejected) - margin, as a term of the scores.
Term OfLogit(double value, double slope, double beta) {
  return {value, beta * slope, -beta * slope};
}

// dpo's function of h, with smoothed labels.
Term Logistic(double h, double beta, double smoothing) {
  const double value = -(1 - smoothing) * LogSigmoid(h) - smoothing * LogSigmoid(-h);
  return OfLogit(value, -(1 - smoothing) * Sigmoid(-h) + smoothing * Sigmoid(h), beta);
}

Term Robust(double h, double beta, double flips) {
  const double value = -(1 - flips) * LogSigmoid(h) + flips * LogSigmoid(-h);
  const double slope = -(1 - flips) * Sigmoid(-h) - flips * Sigmoid(h);
  return OfLogit(value / (1 - 2 * flips), slope / (1 - 2 * flips), beta);
}

Term Exo(double h, double beta, double smoothing) {
  const double q = Sigmoid(h), not_q = Sigmoid(-h);
  const double value =
      q * (LogSigmoid(h) - std::log1p(-smoothing)) + not_q * (LogSigmoid(-h) - std::log(smoothing));
  const double target = std::log1p(-smoothing) - std::log(smoothing);  // the h that is best
  return OfLogit(value, q * not_q * (h - target), beta);
}

// The derivative of Sigmoid.
double SigmoidSlope(double x) { return Sigmoid(x) * Sigmoid(-x); }

Term ApoZero(double chosen, double rejected, double beta) {
  return {Sigmoid(-beta * chosen) + Sigmoid(beta * rejected), -beta * SigmoidSlope(beta * chosen),
          beta * SigmoidSlope(beta * rejected)};
}

Term ApoDown(double chosen, double rejected, double beta) {
  const double h = beta * (chosen - rejected);
  return {Sigmoid(beta * chosen) + Sigmoid(-h),
          beta * (SigmoidSlope(beta * chosen) - SigmoidSlope(h)), beta * SigmoidSlope(h)};
}

Term Ipo(double chosen, double rejected, double beta) {
  const double off = chosen - rejected - 1 / (2 * beta);
  return {off * off, 2 * off, -2 * off};
}

// log(1 - e^x) for x < 0, without cancellation on either side of -log 2 (Maechler 2012, "Accurately
// computing log(1 - exp(-|a|))").
double Log1mExp(double x) {
  return x > -std::log(2.0) ? std::log(-std::expm1(x)) : std::log1p(-std::exp(x));
}

// Scores are mean log-probs; d log(odds) / d log p = 1 / (1 - p).
Term Orpo(double chosen, double rejected, double beta) {
  const double c = std::min(chosen, kLargestMeanLogprob);
  const double r = std::min(rejected, kLargestMeanLogprob);
  const double log_odds_ratio = (c - Log1mExp(c)) - (r - Log1mExp(r));
  const double slope = -beta * Sigmoid(-log_odds_ratio);
  return {-beta * LogSigmoid(log_odds_ratio), slope / -std::expm1(c), -slope / -std::expm1(r)};
}

Term PairTerm(double chosen, double rejected, double margin, const PreferenceLossOptions& options) {
  const double beta = Beta(options);
  const double h = beta * (chosen - rejected) - margin;
  switch (options.kind) {
    case Kind::kDpoHinge:
      return h < 1 ? OfLogit(1 - h, -1, beta) : Term{};
    case Kind::kIpo:
      return Ipo(chosen, rejected, beta);
    case Kind::kRobust:
      return Robust(h, beta, options.label_smoothing);
    case Kind::kExo:
      return Exo(h, beta, options.label_smoothing);
    case Kind::kApoZero:
      return ApoZero(chosen, rejected, beta);
    case Kind::kApoDown:
      return ApoDown(chosen, rejected, beta);
    case Kind::kOrpo:
      return Orpo(chosen, rejected, beta);
    case Kind::kSimpo:
      return Logistic(h - options.simpo_gamma, beta, options.label_smoothing);
    default:
      return Logistic(h, beta, options.label_smoothing);
  }
}

// Whether the score is per token instead of summed.
bool IsPerToken(Kind kind) {
  return kind == Kind::kDpoNorm || kind == Kind::kIpo || kind == Kind::kSimpo ||
         kind == Kind::kOrpo;
}

// The score of a completion, its derivative by the summed log-prob, and the implicit reward.
struct Score {
  double value, slope, reward;
};

Score CompletionScore(double logprob, std::span<const double> reference,
                      std::span<const int64_t> tokens, size_t i,
                      const PreferenceLossOptions& options) {
  const bool compared = NeedsReference(options.kind);
  const double sum = compared ? logprob - reference[i] : logprob;
  const double scale = IsPerToken(options.kind) ? 1 / static_cast<double>(tokens[i]) : 1;
  const double rewarded = compared ? sum : sum * scale;
  return {sum * scale, scale, Beta(options) * rewarded};
}

// The spans that the loss reads are there and parallel.
void CheckSpans(const PreferencePairs& pairs, const PreferenceLossOptions& options) {
  const size_t n = pairs.chosen_logprobs.size();
  TANDEM_CHECK(!NeedsLabels(options.kind));  // kto has a function of its own
  TANDEM_CHECK(pairs.rejected_logprobs.size() == n);
  TANDEM_CHECK(pairs.margins.empty() || pairs.margins.size() == n);
  if (NeedsReference(options.kind)) {
    TANDEM_CHECK(pairs.reference_chosen_logprobs.size() == n);
    TANDEM_CHECK(pairs.reference_rejected_logprobs.size() == n);
  }
  if (IsPerToken(options.kind)) {
    TANDEM_CHECK(pairs.chosen_tokens.size() == n && pairs.rejected_tokens.size() == n);
  }
  if (NllWeight(options) > 0) {
    TANDEM_CHECK(pairs.chosen_nll.size() == n && pairs.nll_tokens.size() == n);
  }
}

// The derivative of the NLL term by the summed negative log-likelihood of a pair: the weight over
// the mean number of tokens, so that the mean over pairs is the mean over tokens.
double NllSlope(const PreferencePairs& pairs, const PreferenceLossOptions& options) {
  if (NllWeight(options) == 0) return 0;
  const auto total = std::accumulate(pairs.nll_tokens.begin(), pairs.nll_tokens.end(), int64_t{0});
  const double mean = pairs.batch_nll_tokens.value_or(static_cast<double>(total) /
                                                      static_cast<double>(pairs.nll_tokens.size()));
  return NllWeight(options) / mean;
}

}  // namespace

PreferenceLoss ComputePreferenceLoss(const PreferencePairs& pairs,
                                     const PreferenceLossOptions& options) {
  CheckSpans(pairs, options);
  const size_t n = pairs.chosen_logprobs.size();
  PreferenceLoss loss;
  for (auto* column : {&loss.value, &loss.chosen_slope, &loss.rejected_slope, &loss.nll_slope,
                       &loss.chosen_reward, &loss.rejected_reward}) {
    column->resize(n);
  }
  const double nll_slope = n == 0 ? 0 : NllSlope(pairs, options);
  for (size_t i = 0; i < n; ++i) {
    const Score chosen = CompletionScore(pairs.chosen_logprobs[i], pairs.reference_chosen_logprobs,
                                         pairs.chosen_tokens, i, options);
    const Score rejected =
        CompletionScore(pairs.rejected_logprobs[i], pairs.reference_rejected_logprobs,
                        pairs.rejected_tokens, i, options);
    const double margin = pairs.margins.empty() ? 0 : pairs.margins[i];
    const Term term = PairTerm(chosen.value, rejected.value, margin, options);
    loss.value[i] = term.value + (nll_slope == 0 ? 0 : nll_slope * pairs.chosen_nll[i]);
    loss.chosen_slope[i] = term.chosen_slope * chosen.slope;
    loss.rejected_slope[i] = term.rejected_slope * rejected.slope;
    loss.nll_slope[i] = nll_slope;
    loss.chosen_reward[i] = chosen.reward;
    loss.rejected_reward[i] = rejected.reward;
  }
  return loss;
}

PreferenceMetrics SummarisePreferences(const PreferenceLoss& loss) {
  PreferenceMetrics metrics;
  const size_t n = loss.value.size();
  for (size_t i = 0; i < n; ++i) {
    const auto share = 1 / static_cast<double>(n);
    metrics.loss += share * loss.value[i];
    metrics.chosen_reward += share * loss.chosen_reward[i];
    metrics.rejected_reward += share * loss.rejected_reward[i];
    if (loss.chosen_reward[i] > loss.rejected_reward[i]) metrics.accuracy += share;
  }
  metrics.margin = metrics.chosen_reward - metrics.rejected_reward;
  return metrics;
}

double DesensitisedSum(std::span<const double> logprobs, int64_t shorter_length, double ld_alpha) {
  double sum = 0;
  for (size_t t = 0; t < logprobs.size(); ++t) {
    sum += TokenWeight(static_cast<int64_t>(t), shorter_length, ld_alpha) * logprobs[t];
  }
  return sum;
}

KtoLoss ComputeKtoLoss(const LabelledLogprobs& completions, double reference_point,
                       const PreferenceLossOptions& options) {
  const size_t n = completions.logprobs.size();
  TANDEM_CHECK(completions.reference_logprobs.size() == n && completions.desirable.size() == n);
  const double beta = Beta(options);
  KtoLoss loss{std::vector<double>(n), std::vector<double>(n), std::vector<double>(n)};
  for (size_t i = 0; i < n; ++i) {
    const double ratio = completions.logprobs[i] - completions.reference_logprobs[i];
    const double x = beta * (ratio - reference_point);
    const bool good = completions.desirable[i] != 0;
    const double weight = good ? options.desirable_weight : options.undesirable_weight;
    loss.value[i] = weight * Sigmoid(good ? -x : x);  // 1 - sigmoid(y) = sigmoid(-y)
    loss.slope[i] = weight * beta * SigmoidSlope(x) * (good ? -1 : 1);
    loss.reward[i] = beta * ratio;
  }
  return loss;
}

double KtoReferencePoint(double log_ratio_sum, int64_t count) {
  return count == 0 ? 0 : std::max(0.0, log_ratio_sum / static_cast<double>(count));
}

}  // namespace tandem::trainer
