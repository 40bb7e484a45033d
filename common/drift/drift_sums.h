// DriftSums: the sums that all drift metrics are functions of, and those functions. The sums add up
// over tokens, completions and ranks, and are taken before any clamp. Pure.
//
// Sources of the estimators: k1, k2 and k3 are Schulman's (2020), of KL(behaviour || proximal) on
// tokens that the behaviour policy sampled. Reverse KL, chi-square and ESS are plain importance
// sampling. docs/metrics.md derives the calibration test.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/capture/token_record.h"
#include "common/statistics/cluster_bootstrap.h"

namespace tandem::offpolicy {

struct DriftSums {
  // Sums over tokens.
  double tokens = 0, nonfinite = 0;
  double delta = 0, delta2 = 0, w = 0, w2 = 0, k3 = 0, w_delta = 0;
  double abs_delta = 0, exp_abs_delta = 0, above_1e6 = 0;
  double p = 0, q = 0, pp = 0, qq = 0, pq = 0,
         abs_difference = 0;                   // p: proximal, q: behaviour probability
  double surprise = 0, surprise_variance = 0;  // of the sampler's calibration test
  double positive_tokens = 0, positive_w = 0, positive_delta = 0;
  double negative_tokens = 0, negative_w = 0, negative_delta = 0;
  // Sums over completions, each from all of a completion's tokens.
  double sequences = 0;
  double sequence_sum = 0, sequence_mean = 0;        // of the sum and of the mean of delta
  double sequence_w = 0, sequence_w2 = 0;            // of e^(sum delta), the product of weights
  double behaviour_logppl = 0, proximal_logppl = 0;  // of minus the mean log-prob

  // Adds token t of `record`, which must be unmasked and have finite log-probs.
  void AddToken(const TokenRecord& record, size_t t);
  // Adds one completion, given the sums over its tokens.
  void AddSequence(const DriftSums& token_sums, double behaviour_logprobs,
                   double proximal_logprobs);
  void Merge(const DriftSums& other);

  static const std::vector<double DriftSums::*>& Fields();
  static DriftSums FromRow(std::span<const double> row);  // [Fields().size()]
  void AppendTo(std::vector<double>& row) const;

  // The metrics. Without tokens or completions, each has the value that equal policies give.
  double mean_delta() const { return PerToken(delta); }
  double k1() const { return -mean_delta(); }
  double k2() const { return PerToken(delta2) / 2; }
  double mean_k3() const { return PerToken(k3); }
  double reverse_kl() const { return PerToken(w_delta); }
  double mean_w() const { return tokens > 0 ? w / tokens : 1; }
  // Standard error over tokens; valid if E[w | prefix] = 1, as it is unless support is lost.
  double mean_w_stderr() const;
  double mean_w_z() const;  // (mean w - 1) / its standard error
  double chi2() const { return tokens > 0 ? w2 / tokens - 1 : 0; }
  double ess_fraction() const { return Ess(tokens, w, w2); }
  double mean_abs_delta() const { return PerToken(abs_delta); }
  double mean_exp_abs_delta() const { return tokens > 0 ? exp_abs_delta / tokens : 1; }
  double share_above_1e6() const { return PerToken(above_1e6); }
  double pearson_probability() const;  // 1 when a side does not vary
  double mean_abs_probability_difference() const { return PerToken(abs_difference); }
  double calibration_z() const;  // sum x / sqrt(sum Var), x = -log mu - H
  double calibration_surprise() const { return PerToken(surprise); }  // mean x
  double positive_mean_w() const { return positive_tokens > 0 ? positive_w / positive_tokens : 1; }
  double negative_mean_w() const { return negative_tokens > 0 ? negative_w / negative_tokens : 1; }
  double positive_mean_delta() const {
    return positive_tokens > 0 ? positive_delta / positive_tokens : 0;
  }
  double negative_mean_delta() const {
    return negative_tokens > 0 ? negative_delta / negative_tokens : 0;
  }
  double sequence_log_ratio_sum() const { return PerSequence(sequence_sum); }
  double sequence_log_ratio_mean() const { return PerSequence(sequence_mean); }
  double log_ppl_gap() const { return PerSequence(proximal_logppl - behaviour_logppl); }
  double sequence_mean_w() const { return sequences > 0 ? sequence_w / sequences : 1; }
  double sequence_chi2() const { return sequences > 0 ? sequence_w2 / sequences - 1 : 0; }
  double sequence_ess_fraction() const { return Ess(sequences, sequence_w, sequence_w2); }

 private:
  double PerToken(double sum) const { return tokens > 0 ? sum / tokens : 0; }
  double PerSequence(double sum) const { return sequences > 0 ? sum / sequences : 0; }
  static double Ess(double n, double sum, double squares) {
    return n > 0 && squares > 0 ? sum * sum / (n * squares) : 1;
  }
};

// The sums of each completion, [S]. A completion without a usable token has zeros, except for
// `nonfinite`.
std::vector<DriftSums> SumBySequence(const TokenRecord& record);

// Rows for BootstrapIntervals, with completions or groups as clusters. Clusters without a token are
// left out.
ClusterSums SequenceClusters(std::span<const DriftSums> sequences);
ClusterSums GroupClusters(std::span<const DriftSums> sequences, std::span<const int32_t> group);

}  // namespace tandem::offpolicy
