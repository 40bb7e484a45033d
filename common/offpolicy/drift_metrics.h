// Drift metrics of one train step or capture: behaviour against proximal log-probs, before any
// clamp (drift.md section 1, without bootstrap). Pure functions over plain spans.
//
//   delta = log pi_proximal - log pi_behaviour,  w = e^delta, over trained tokens
#ifndef TANDEM_COMMON_OFFPOLICY_DRIFT_METRICS_H_
#define TANDEM_COMMON_OFFPOLICY_DRIFT_METRICS_H_

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tandem::offpolicy {

// All [T], in parallel. `mask` selects the tokens; `sequence` numbers the completion of each token.
struct TokenRecord {
  std::span<const float> behaviour_logprobs;
  std::span<const float> proximal_logprobs;
  std::span<const float> entropies;               // of the sampling distribution
  std::span<const float> logprob_second_moments;  // of the sampling distribution
  std::span<const float> advantages;
  std::span<const int32_t> sequence;
  std::span<const uint8_t> mask;
};

struct DriftMetrics {
  int64_t num_tokens = 0;
  int64_t num_nonfinite = 0;  // dropped from everything below, counted here
  double mean_delta = 0;
  double k1 = 0;            // mean(-delta)
  double k2 = 0;            // mean(delta^2 / 2)
  double k3 = 0;            // mean(w - 1 - delta)
  double reverse_kl = 0;    // mean(w delta)
  double chi2 = 0;          // mean(w^2) - 1
  double ess_fraction = 1;  // (sum w)^2 / (N sum w^2), unclamped
  double mean_w = 1;
  double mean_w_stderr = 0;
  double mean_abs_delta = 0;
  double max_abs_delta = 0;
  double mean_exp_abs_delta = 1;  // NeMo-RL token_mult_prob_error
  double abs_delta_p50 = 0, abs_delta_p90 = 0, abs_delta_p99 = 0, abs_delta_p999 = 0;
  double share_above_1e6 = 0;  // share of abs(delta) > 1e-6
  double pearson_probability =
      1;  // correlation of the two probabilities; NaN-free: 1 when constant
  double mean_abs_probability_difference = 0, max_abs_probability_difference = 0;
  double sequence_log_ratio_sum_mean = 0;   // mean over sequences of sum_t delta (product form)
  double sequence_log_ratio_mean_mean = 0;  // mean over sequences of mean_t delta (geometric form)
  double sequence_log_ratio_max = 0;        // max over sequences of abs(sum_t delta)
  double log_ppl_gap = 0;    // mean over sequences of mean_t(-log pi) - mean_t(-log mu)
  double calibration_z = 0;  // sum(-log mu - H) / sqrt(sum(m2 - H^2))
  double positive_mean_w = 1, negative_mean_w = 1;  // advantage > 0, < 0
  double positive_mean_delta = 0, negative_mean_delta = 0;
  int64_t positive_tokens = 0, negative_tokens = 0;
};

DriftMetrics ComputeDriftMetrics(const TokenRecord& record);

// ("drift/k1", value) ..., in a fixed order: the names of metrics.jsonl (docs/metrics.md).
std::vector<std::pair<std::string, double>> NamedDriftMetrics(const DriftMetrics& metrics);

}  // namespace tandem::offpolicy

#endif  // TANDEM_COMMON_OFFPOLICY_DRIFT_METRICS_H_
