#include "common/drift/peer_metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/statistics/sample_statistics.h"

namespace tandem::offpolicy {
namespace {

using Values = std::vector<double>;
using Named = std::vector<std::pair<std::string, double>>;

constexpr double kSafetyBound = 20;  // verl's bound on exponents

double Max(const Values& values) { return *std::ranges::max_element(values); }
double Min(const Values& values) { return *std::ranges::min_element(values); }

// As torch.std: divides by n - 1, and is NaN for a single value.
double SampleStd(const Values& values) {
  const auto n = static_cast<double>(values.size());
  return n > 1 ? std::sqrt(SquaredDeviations(values) / (n - 1))
               : std::numeric_limits<double>::quiet_NaN();
}
double PopulationStd(const Values& values) {
  return std::sqrt(SquaredDeviations(values) / static_cast<double>(values.size()));
}

template <typename Function>
Values Map(const Values& values, const Function& function) {
  Values mapped;
  mapped.reserve(values.size());
  for (const double x : values) mapped.push_back(function(x));
  return mapped;
}
template <typename Function>
double Share(const Values& values, const Function& is) {
  return Mean(Map(values, [&](double x) { return is(x) ? 1.0 : 0.0; }));
}
double K3(double delta) { return std::expm1(delta) - delta; }
double SafeExp(double x) { return std::exp(std::clamp(x, -kSafetyBound, kSafetyBound)); }

// The tokens of a record that are neither masked nor non-finite.
struct Batch {
  Values mu, pi, delta;          // [T]
  std::vector<size_t> sequence;  // [T] in [0, S); completions without a token are left out
  Values tokens, sum_delta, mean_mu, mean_pi;  // [S]

  Values Broadcast(const Values& sequence_values) const {
    Values broadcast;
    for (const size_t s : sequence) broadcast.push_back(sequence_values[s]);
    return broadcast;
  }
  Values MeanBySequence(const Values& token_values) const {
    Values means(tokens.size());
    for (size_t t = 0; t < token_values.size(); ++t) means[sequence[t]] += token_values[t];
    for (size_t s = 0; s < means.size(); ++s) means[s] /= tokens[s];
    return means;
  }
};

Batch MakeBatch(const TokenRecord& record) {
  Batch batch;
  int32_t last = -1;
  for (size_t t = 0; t < record.mask.size(); ++t) {
    if (!record.mask[t] || !record.IsFinite(t)) continue;
    if (record.sequence[t] != last) {
      last = record.sequence[t];
      batch.tokens.push_back(0);
      batch.sum_delta.push_back(0);
    }
    batch.mu.push_back(record.behaviour_logprobs[t]);
    batch.pi.push_back(record.proximal_logprobs[t]);
    batch.delta.push_back(record.Delta(t));
    batch.sequence.push_back(batch.tokens.size() - 1);
    batch.tokens.back() += 1;
    batch.sum_delta.back() += record.Delta(t);
  }
  if (!batch.tokens.empty()) {
    batch.mean_mu = batch.MeanBySequence(batch.mu);
    batch.mean_pi = batch.MeanBySequence(batch.pi);
  }
  return batch;
}

// A correction in the terms of these systems: weights of tokens or completions, bounds, and values
// outside the bounds either set to 0 or moved to the bound. Empty where the run has no weights, or
// weights that these systems lack.
struct Weights {
  bool sequence = false, zero_outside = false;
  double low = 0, high = 0;

  double Apply(double raw) const {
    if (zero_outside) return raw >= low && raw <= high ? raw : 0;
    return std::clamp(raw, low, high);
  }
};

std::optional<Weights> WeightsOf(const CorrectionOptions& options) {
  if (!HasWeights(options) || LevelOf(options.kind) == Level::kGeometric) return std::nullopt;
  const Bound bound = BoundOf(options.kind);
  return Weights{LevelOf(options.kind) == Level::kSequence, bound == Bound::kMask,
                 bound == Bound::kTruncate ? 0 : options.min_weight, options.max_weight};
}

// verl --------------------------------------------------------------------------------------------

void AddVerlGap(const Batch& batch, Named& named) {
  const auto add = [&](const char* name, double value) {
    named.emplace_back(absl::StrCat("rollout_corr/", name), value);
  };
  Values gap;  // log-perplexity of the trainer less the server's, per completion
  for (size_t s = 0; s < batch.tokens.size(); ++s) {
    gap.push_back(batch.mean_mu[s] - batch.mean_pi[s]);
  }
  const auto perplexity = [](double mean) { return std::exp(-mean); };
  add("training_ppl", Mean(Map(batch.mean_pi, perplexity)));
  add("training_log_ppl", -Mean(batch.mean_pi));
  add("kl", -Mean(batch.delta));
  add("k3_kl", Mean(Map(batch.delta, K3)));
  add("rollout_ppl", Mean(Map(batch.mean_mu, perplexity)));
  add("rollout_log_ppl", -Mean(batch.mean_mu));
  add("log_ppl_diff", Mean(gap));
  add("log_ppl_abs_diff", Mean(Map(gap, [](double x) { return std::abs(x); })));
  add("log_ppl_diff_max", Max(gap));
  add("log_ppl_diff_min", Min(gap));
  add("ppl_ratio", Mean(Map(gap, [](double x) { return std::exp(x); })));
  const auto square = [](double x) { return SafeExp(x) * SafeExp(x); };
  add("chi2_token", Mean(Map(batch.delta, square)) - 1);
  add("chi2_seq", Mean(Map(batch.sum_delta, square)) - 1);
}

void AddVerlProbabilities(const Batch& batch, Named& named) {
  const Values p = Map(batch.pi, [](double x) { return std::exp(x); });
  const Values q = Map(batch.mu, [](double x) { return std::exp(x); });
  Values difference;
  for (size_t t = 0; t < p.size(); ++t) difference.push_back(std::abs(p[t] - q[t]));
  const double mean_p = Mean(p), mean_q = Mean(q);
  double covariance = 0;
  for (size_t t = 0; t < p.size(); ++t) covariance += (p[t] - mean_p) * (q[t] - mean_q);
  covariance /= static_cast<double>(p.size());
  named.emplace_back("training/rollout_probs_diff_max", Max(difference));
  named.emplace_back("training/rollout_probs_diff_mean", Mean(difference));
  named.emplace_back("training/rollout_probs_diff_std", SampleStd(difference));
  named.emplace_back("training/rollout_actor_probs_pearson_corr",
                     covariance / (PopulationStd(p) * PopulationStd(q)));
}

void AddVerlWeights(const Batch& batch, const Weights& weights, bool normalised, Named& named) {
  const auto add = [&](const char* name, double value) {
    named.emplace_back(absl::StrCat("rollout_corr/rollout_is_", name), value);
  };
  const double low = weights.zero_outside ? weights.low : 1 / weights.high, high = weights.high;
  const Values raw =
      weights.sequence ? batch.Broadcast(Map(batch.sum_delta, SafeExp)) : Map(batch.delta, SafeExp);
  const Values applied = Map(raw, [&](double w) { return weights.Apply(w); });
  const Values by_sequence = batch.MeanBySequence(applied), raw_means = batch.MeanBySequence(raw);
  const auto above = [&](double w) { return w > high; };
  const auto below = [&](double w) { return w < low; };
  add("mean", Mean(applied));
  if (weights.sequence) {  // before the bounds are applied, unlike the mean
    const Values ratios = Map(batch.sum_delta, [](double x) { return std::exp(x); });
    add("max", std::exp(std::min(Max(batch.sum_delta), kSafetyBound)));
    add("min", Min(ratios));
    add("ratio_fraction_high", Share(ratios, above));
    add("ratio_fraction_low", Share(ratios, below));
  } else {
    add("max", Max(applied));
    add("min", Min(applied));
    add("ratio_fraction_high", Share(raw, above));
    add("ratio_fraction_low", Share(raw, below));
  }
  add("std", applied.size() > 1 ? PopulationStd(applied) : 0);
  const double mean = Mean(applied);
  add("eff_sample_size", mean * mean / Mean(Map(applied, [](double w) { return w * w; })));
  add("seq_mean", Mean(by_sequence));
  add("seq_std", by_sequence.size() > 1 ? SampleStd(by_sequence) : 0);
  add("seq_max", Max(by_sequence));
  add("seq_min", Min(by_sequence));
  add("seq_max_deviation", Max(Map(by_sequence, [](double w) { return std::abs(w - 1); })));
  add("seq_fraction_high", Share(raw_means, above));
  add("seq_fraction_low", Share(raw_means, below));
  if (weights.zero_outside) {
    add("oob_ratio", Share(raw, [&](double w) { return w < weights.low || w > high; }));
  }
  if (normalised) {
    const double factor = weights.sequence ? Mean(by_sequence) : mean;
    add("batch_norm_factor", factor > 1e-8 ? factor : 1);
  }
}

void AddVerl(const Batch& batch, const PeerSettings& settings, Named& named) {
  AddVerlProbabilities(batch, named);
  if (settings.correction.mode == CorrectionMode::kBypass && !settings.one_update) return;
  AddVerlGap(batch, named);
  const std::optional<Weights> weights = WeightsOf(settings.correction);
  const bool clips_below = weights && !weights->zero_outside && weights->low > 0;
  if (!weights || clips_below) return;  // verl never raises a weight
  AddVerlWeights(batch, *weights, settings.correction.batch_normalise, named);
}

// NeMo-RL -----------------------------------------------------------------------------------------

// Half of exp(a) - a - 1 for each side, against the mean of both.
double JensenShannon(double pi, double mu) {
  const double mixture = std::log(0.5 * std::exp(pi) + 0.5 * std::exp(mu));
  return 0.5 * K3(pi - mixture) + 0.5 * K3(mu - mixture);
}

void AddNemoRl(const Batch& batch, const PeerSettings& settings, Named& named) {
  const auto add = [&](const char* name, double value) {
    named.emplace_back(absl::StrCat("train/", name), value);
  };
  Values shannon;
  for (size_t t = 0; t < batch.pi.size(); ++t) {
    shannon.push_back(JensenShannon(batch.pi[t], batch.mu[t]));
  }
  add("token_mult_prob_error",
      Mean(Map(batch.delta, [](double x) { return std::exp(std::abs(x)); })));
  add("gen_kl_error", Mean(Map(batch.delta, K3)));
  add("policy_kl_error", Mean(Map(batch.delta, [](double x) { return K3(-x); })));
  add("js_divergence_error", Mean(shannon));
  const Values raw = Map(batch.delta, [](double x) { return std::exp(x); });
  const CorrectionOptions& correction = settings.correction;
  const std::optional<Weights> weights = WeightsOf(correction);
  if (!HasWeights(correction)) add("sampling_importance_ratio", Mean(raw));
  if (!weights || weights->sequence) return;
  add("sampling_importance_ratio", Mean(Map(raw, [&](double w) { return weights->Apply(w); })));
  add("is_oob_ratio", Share(raw, [&](double w) { return w < weights->low || w > weights->high; }));
}

// TRL and prime-rl --------------------------------------------------------------------------------

void AddTrl(const Batch& batch, const PeerSettings& settings, Named& named) {
  const auto add = [&](const char* name, double value) {
    named.emplace_back(absl::StrCat("sampling/", name), value);
  };
  const Values sizes = Map(batch.delta, [](double x) { return std::abs(x); });
  add("sampling_logp_difference/mean", Mean(sizes));
  add("sampling_logp_difference/max", Max(sizes));
  const std::optional<Weights> weights = WeightsOf(settings.correction);
  if (!weights) return;
  const Values ratios = Map(weights->sequence ? batch.sum_delta : batch.delta,
                            [&](double x) { return weights->Apply(std::exp(x)); });
  add("importance_sampling_ratio/min", Min(ratios));
  add("importance_sampling_ratio/mean", Mean(ratios));
  add("importance_sampling_ratio/max", Max(ratios));
}

void AddPrimeRl(const Batch& batch, const PeerSettings& settings, Named& named) {
  if (!settings.one_update) return;
  const Values kl = Map(batch.delta, K3);
  named.emplace_back("mismatch_kl/all/mean", Mean(kl));
  named.emplace_back("mismatch_kl/all/std", SampleStd(kl));
  named.emplace_back("mismatch_kl/all/max", Max(kl));
}

}  // namespace

absl::StatusOr<Peer> ParsePeer(const std::string& name) {
  if (name == "verl") return Peer::kVerl;
  if (name == "nemo_rl") return Peer::kNemoRl;
  if (name == "trl") return Peer::kTrl;
  if (name == "prime_rl") return Peer::kPrimeRl;
  return InvalidArgument("\"", name, "\" is none of verl, nemo_rl, trl, prime_rl");
}

Named PeerMetrics(Peer peer, const TokenRecord& record, const PeerSettings& settings) {
  const Batch batch = MakeBatch(record);
  Named named;
  if (batch.delta.empty()) return named;
  switch (peer) {
    case Peer::kVerl:
      AddVerl(batch, settings, named);
      break;
    case Peer::kNemoRl:
      AddNemoRl(batch, settings, named);
      break;
    case Peer::kTrl:
      AddTrl(batch, settings, named);
      break;
    case Peer::kPrimeRl:
      AddPrimeRl(batch, settings, named);
      break;
  }
  return named;
}

}  // namespace tandem::offpolicy
