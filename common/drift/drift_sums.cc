#include "common/drift/drift_sums.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace tandem::offpolicy {

void DriftSums::AddToken(const TokenRecord& record, size_t t) {
  const double mu = record.behaviour_logprobs[t], pi = record.proximal_logprobs[t];
  const double d = pi - mu, weight = std::exp(d);
  ++tokens;
  delta += d;
  delta2 += d * d;
  w += weight;
  w2 += weight * weight;
  k3 += std::expm1(d) - d;  // w - 1 - delta without cancellation
  w_delta += weight * d;
  abs_delta += std::abs(d);
  exp_abs_delta += std::exp(std::abs(d));
  above_1e6 += std::abs(d) > 1e-6;
  const double p_proximal = std::exp(pi), p_behaviour = std::exp(mu);
  p += p_proximal;
  q += p_behaviour;
  pp += p_proximal * p_proximal;
  qq += p_behaviour * p_behaviour;
  pq += p_proximal * p_behaviour;
  abs_difference += std::abs(p_proximal - p_behaviour);
  const double entropy = record.entropies[t];
  const double variance = record.logprob_second_moments[t] - entropy * entropy;
  if (std::isfinite(entropy) && std::isfinite(variance)) {
    surprise += -mu - entropy;
    surprise_variance += std::max(0.0, variance);
  }
  if (record.advantages[t] > 0) {
    ++positive_tokens;
    positive_w += weight;
    positive_delta += d;
  }
  if (record.advantages[t] < 0) {
    ++negative_tokens;
    negative_w += weight;
    negative_delta += d;
  }
}

void DriftSums::AddSequence(const DriftSums& token_sums, double behaviour_logprobs,
                            double proximal_logprobs) {
  if (token_sums.tokens == 0) return;
  const double n = token_sums.tokens, sum = token_sums.delta;
  const double product = std::exp(sum);
  ++sequences;
  sequence_sum += sum;
  sequence_mean += sum / n;
  sequence_w += product;
  sequence_w2 += product * product;
  behaviour_logppl -= behaviour_logprobs / n;
  proximal_logppl -= proximal_logprobs / n;
}

const std::vector<double DriftSums::*>& DriftSums::Fields() {
  using S = DriftSums;
  static const std::vector<double S::*> fields = {&S::tokens,
                                                  &S::nonfinite,
                                                  &S::delta,
                                                  &S::delta2,
                                                  &S::w,
                                                  &S::w2,
                                                  &S::k3,
                                                  &S::w_delta,
                                                  &S::abs_delta,
                                                  &S::exp_abs_delta,
                                                  &S::above_1e6,
                                                  &S::p,
                                                  &S::q,
                                                  &S::pp,
                                                  &S::qq,
                                                  &S::pq,
                                                  &S::abs_difference,
                                                  &S::surprise,
                                                  &S::surprise_variance,
                                                  &S::positive_tokens,
                                                  &S::positive_w,
                                                  &S::positive_delta,
                                                  &S::negative_tokens,
                                                  &S::negative_w,
                                                  &S::negative_delta,
                                                  &S::sequences,
                                                  &S::sequence_sum,
                                                  &S::sequence_mean,
                                                  &S::sequence_w,
                                                  &S::sequence_w2,
                                                  &S::behaviour_logppl,
                                                  &S::proximal_logppl};
  static_assert(sizeof(DriftSums) == 32 * sizeof(double), "a field is missing from the list");
  return fields;
}

void DriftSums::Merge(const DriftSums& other) {
  for (double DriftSums::*field : Fields()) this->*field += other.*field;
}

DriftSums DriftSums::FromRow(std::span<const double> row) {
  DriftSums sums;
  for (size_t i = 0; i < row.size(); ++i) sums.*Fields()[i] = row[i];
  return sums;
}

void DriftSums::AppendTo(std::vector<double>& row) const {
  for (double DriftSums::*field : Fields()) row.push_back(this->*field);
}

double DriftSums::mean_w_stderr() const {
  if (tokens < 2) return 0;
  const double variance = std::max(0.0, w2 / tokens - mean_w() * mean_w());
  return std::sqrt(variance / (tokens - 1));
}

double DriftSums::mean_w_z() const {
  const double error = mean_w_stderr();
  return error > 0 ? (mean_w() - 1) / error : 0;
}

double DriftSums::pearson_probability() const {
  if (tokens == 0) return 1;
  const double covariance = pq / tokens - (p / tokens) * (q / tokens);
  const double variance_p = pp / tokens - (p / tokens) * (p / tokens);
  const double variance_q = qq / tokens - (q / tokens) * (q / tokens);
  if (variance_p <= 1e-15 || variance_q <= 1e-15) return 1;
  return std::clamp(covariance / std::sqrt(variance_p * variance_q), -1.0, 1.0);
}

double DriftSums::calibration_z() const {
  return surprise_variance > 0 ? surprise / std::sqrt(surprise_variance) : 0;
}

std::vector<DriftSums> SumBySequence(const TokenRecord& record) {
  std::vector<DriftSums> sums(record.length.size());
  std::vector<double> behaviour(sums.size()), proximal(sums.size());
  for (size_t t = 0; t < record.mask.size(); ++t) {
    if (!record.mask[t]) continue;
    const auto s = static_cast<size_t>(record.sequence[t]);
    if (!record.IsFinite(t)) {
      ++sums[s].nonfinite;
      continue;
    }
    sums[s].AddToken(record, t);
    behaviour[s] += record.behaviour_logprobs[t];
    proximal[s] += record.proximal_logprobs[t];
  }
  for (size_t s = 0; s < sums.size(); ++s) sums[s].AddSequence(sums[s], behaviour[s], proximal[s]);
  return sums;
}

ClusterSums SequenceClusters(std::span<const DriftSums> sequences) {
  ClusterSums clusters{.num_sums = static_cast<int64_t>(DriftSums::Fields().size())};
  for (const DriftSums& sums : sequences) {
    if (sums.tokens > 0) sums.AppendTo(clusters.values);
  }
  return clusters;
}

ClusterSums GroupClusters(std::span<const DriftSums> sequences, std::span<const int32_t> group) {
  std::map<int32_t, DriftSums> groups;
  for (size_t s = 0; s < sequences.size(); ++s) groups[group[s]].Merge(sequences[s]);
  ClusterSums clusters{.num_sums = static_cast<int64_t>(DriftSums::Fields().size())};
  for (const auto& [number, sums] : groups) {
    if (sums.tokens > 0) sums.AppendTo(clusters.values);
  }
  return clusters;
}

}  // namespace tandem::offpolicy
