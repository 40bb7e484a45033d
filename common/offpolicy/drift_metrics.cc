#include "common/offpolicy/drift_metrics.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace tandem::offpolicy {
namespace {

struct Sums {
  double delta = 0, delta2 = 0, w = 0, w2 = 0, k3 = 0, w_delta = 0;
  double abs_delta = 0, exp_abs_delta = 0;
  double p = 0, q = 0, pp = 0, qq = 0, pq = 0, abs_difference = 0;
  double surprise = 0, variance = 0;  // of the sampler's calibration
  int64_t above_1e6 = 0;
};

struct SequenceSums {
  double delta = 0;
  int64_t num_tokens = 0;
};

struct SignSums {
  double w = 0, delta = 0;
  int64_t num_tokens = 0;

  void Add(double token_w, double token_delta) {
    w += token_w;
    delta += token_delta;
    ++num_tokens;
  }
};

// The value below which a share `quantile` of the values lies: linear between order statistics
// (numpy's default). Reorders `values`.
double Quantile(std::vector<double>& values, double quantile) {
  const double rank = quantile * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::ptrdiff_t>(std::floor(rank));
  std::nth_element(values.begin(), values.begin() + below, values.end());
  const double low = values[static_cast<size_t>(below)];
  if (static_cast<size_t>(below) + 1 == values.size()) return low;
  const double high = *std::min_element(values.begin() + below + 1, values.end());
  return low + (rank - static_cast<double>(below)) * (high - low);
}

double Pearson(const Sums& s, double n) {
  const double covariance = s.pq / n - (s.p / n) * (s.q / n);
  const double variance_p = s.pp / n - (s.p / n) * (s.p / n);
  const double variance_q = s.qq / n - (s.q / n) * (s.q / n);
  if (variance_p <= 1e-15 || variance_q <= 1e-15) return 1;
  return std::clamp(covariance / std::sqrt(variance_p * variance_q), -1.0, 1.0);
}

void FillTokenMeans(const Sums& s, DriftMetrics& m) {
  const auto n = static_cast<double>(m.num_tokens);
  m.mean_delta = s.delta / n;
  m.k1 = -m.mean_delta;
  m.k2 = s.delta2 / (2 * n);
  m.k3 = s.k3 / n;
  m.reverse_kl = s.w_delta / n;
  m.chi2 = s.w2 / n - 1;
  m.ess_fraction = s.w2 > 0 ? s.w * s.w / (n * s.w2) : 0;
  m.mean_w = s.w / n;
  const double variance = std::max(0.0, s.w2 / n - m.mean_w * m.mean_w);
  m.mean_w_stderr = n > 1 ? std::sqrt(variance / (n - 1)) : 0;
  m.mean_abs_delta = s.abs_delta / n;
  m.mean_exp_abs_delta = s.exp_abs_delta / n;
  m.share_above_1e6 = static_cast<double>(s.above_1e6) / n;
  m.pearson_probability = Pearson(s, n);
  m.mean_abs_probability_difference = s.abs_difference / n;
  m.calibration_z = s.variance > 0 ? s.surprise / std::sqrt(s.variance) : 0;
}

void FillSequences(const std::map<int32_t, SequenceSums>& sequences, DriftMetrics& m) {
  const auto n = static_cast<double>(sequences.size());
  for (const auto& [id, sums] : sequences) {
    const double mean = sums.delta / static_cast<double>(sums.num_tokens);
    m.sequence_log_ratio_sum_mean += sums.delta / n;
    m.sequence_log_ratio_mean_mean += mean / n;
    m.sequence_log_ratio_max = std::max(m.sequence_log_ratio_max, std::abs(sums.delta));
    m.log_ppl_gap += -mean / n;
  }
}

void FillSigns(const SignSums& positive, const SignSums& negative, DriftMetrics& m) {
  m.positive_tokens = positive.num_tokens;
  m.negative_tokens = negative.num_tokens;
  if (positive.num_tokens > 0) {
    m.positive_mean_w = positive.w / static_cast<double>(positive.num_tokens);
    m.positive_mean_delta = positive.delta / static_cast<double>(positive.num_tokens);
  }
  if (negative.num_tokens > 0) {
    m.negative_mean_w = negative.w / static_cast<double>(negative.num_tokens);
    m.negative_mean_delta = negative.delta / static_cast<double>(negative.num_tokens);
  }
}

void AddToken(double mu, double pi, Sums& s, DriftMetrics& m) {
  const double delta = pi - mu;
  const double w = std::exp(delta);
  s.delta += delta;
  s.delta2 += delta * delta;
  s.w += w;
  s.w2 += w * w;
  s.k3 += std::expm1(delta) - delta;  // w - 1 - delta without cancellation
  s.w_delta += w * delta;
  s.abs_delta += std::abs(delta);
  s.exp_abs_delta += std::exp(std::abs(delta));
  s.above_1e6 += std::abs(delta) > 1e-6;
  m.max_abs_delta = std::max(m.max_abs_delta, std::abs(delta));
  const double p = std::exp(pi), q = std::exp(mu);
  s.p += p;
  s.q += q;
  s.pp += p * p;
  s.qq += q * q;
  s.pq += p * q;
  s.abs_difference += std::abs(p - q);
  m.max_abs_probability_difference = std::max(m.max_abs_probability_difference, std::abs(p - q));
}

}  // namespace

DriftMetrics ComputeDriftMetrics(const TokenRecord& record) {
  DriftMetrics m;
  Sums sums;
  SignSums positive, negative;
  std::map<int32_t, SequenceSums> sequences;
  std::vector<double> abs_deltas;
  for (size_t t = 0; t < record.mask.size(); ++t) {
    if (!record.mask[t]) continue;
    const double mu = record.behaviour_logprobs[t], pi = record.proximal_logprobs[t];
    if (!std::isfinite(mu) || !std::isfinite(pi)) {
      ++m.num_nonfinite;
      continue;
    }
    ++m.num_tokens;
    AddToken(mu, pi, sums, m);
    const double delta = pi - mu;
    abs_deltas.push_back(std::abs(delta));
    SequenceSums& sequence = sequences[record.sequence[t]];
    sequence.delta += delta;
    ++sequence.num_tokens;
    const double entropy = record.entropies[t];
    const double variance = record.logprob_second_moments[t] - entropy * entropy;
    if (std::isfinite(entropy) && std::isfinite(variance)) {
      sums.surprise += -mu - entropy;
      sums.variance += std::max(0.0, variance);
    }
    if (record.advantages[t] > 0) positive.Add(std::exp(delta), delta);
    if (record.advantages[t] < 0) negative.Add(std::exp(delta), delta);
  }
  if (m.num_tokens == 0) return m;
  FillTokenMeans(sums, m);
  FillSequences(sequences, m);
  FillSigns(positive, negative, m);
  m.abs_delta_p50 = Quantile(abs_deltas, 0.5);
  m.abs_delta_p90 = Quantile(abs_deltas, 0.9);
  m.abs_delta_p99 = Quantile(abs_deltas, 0.99);
  m.abs_delta_p999 = Quantile(abs_deltas, 0.999);
  return m;
}

std::vector<std::pair<std::string, double>> NamedDriftMetrics(const DriftMetrics& m) {
  return {
      {"drift/num_tokens", static_cast<double>(m.num_tokens)},
      {"drift/num_nonfinite", static_cast<double>(m.num_nonfinite)},
      {"drift/mean_delta", m.mean_delta},
      {"drift/k1", m.k1},
      {"drift/k2", m.k2},
      {"drift/k3", m.k3},
      {"drift/reverse_kl", m.reverse_kl},
      {"drift/chi2", m.chi2},
      {"drift/ess_fraction", m.ess_fraction},
      {"drift/mean_w", m.mean_w},
      {"drift/mean_w_stderr", m.mean_w_stderr},
      {"drift/mean_abs_delta", m.mean_abs_delta},
      {"drift/max_abs_delta", m.max_abs_delta},
      {"drift/mean_exp_abs_delta", m.mean_exp_abs_delta},
      {"drift/abs_delta_p50", m.abs_delta_p50},
      {"drift/abs_delta_p90", m.abs_delta_p90},
      {"drift/abs_delta_p99", m.abs_delta_p99},
      {"drift/abs_delta_p999", m.abs_delta_p999},
      {"drift/share_above_1e6", m.share_above_1e6},
      {"drift/pearson_probability", m.pearson_probability},
      {"drift/mean_abs_probability_difference", m.mean_abs_probability_difference},
      {"drift/max_abs_probability_difference", m.max_abs_probability_difference},
      {"drift/sequence_log_ratio_sum_mean", m.sequence_log_ratio_sum_mean},
      {"drift/sequence_log_ratio_mean_mean", m.sequence_log_ratio_mean_mean},
      {"drift/sequence_log_ratio_max", m.sequence_log_ratio_max},
      {"drift/log_ppl_gap", m.log_ppl_gap},
      {"drift/calibration_z", m.calibration_z},
      {"drift/positive_mean_w", m.positive_mean_w},
      {"drift/negative_mean_w", m.negative_mean_w},
      {"drift/positive_mean_delta", m.positive_mean_delta},
      {"drift/negative_mean_delta", m.negative_mean_delta},
      {"drift/positive_tokens", static_cast<double>(m.positive_tokens)},
      {"drift/negative_tokens", static_cast<double>(m.negative_tokens)},
  };
}

}  // namespace tandem::offpolicy
