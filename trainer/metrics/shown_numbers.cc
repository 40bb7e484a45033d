// The keys of metrics.jsonl that have a gauge of their own.
#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "trainer/metrics/alerts.h"
#include "trainer/metrics/trainer_metrics.h"

namespace tandem::trainer {

namespace {

// No bound.
constexpr double kNone = std::numeric_limits<double>::infinity();

constexpr ShownNumber kShownNumbers[] = {
    {"reward/mean", "tandem_trainer_reward_mean", "Mean reward of a completion."},
    {"reward/std", "tandem_trainer_reward_deviation", "Standard deviation of the reward."},
    {"reward/pass_at_k", "tandem_trainer_reward_pass_ratio",
     "Share of groups with a right completion."},
    {"reward/zero_variance_share", "tandem_trainer_zero_variance_ratio",
     "Share of groups whose rewards are all equal."},
    {"length/mean", "tandem_trainer_completion_tokens_mean", "Mean tokens of a completion."},
    {"length/truncated_share", "tandem_trainer_truncated_ratio",
     "Share of completions that ended by length."},
    {"drift/mean_abs_delta", "tandem_trainer_drift_mean_abs_delta",
     "Mean absolute difference of log-probs, trainer less server, in nats.", 1, -kNone,
     AlertOptions().drift_guard},
    {"drift/max_abs_delta", "tandem_trainer_drift_max_abs_delta", "The largest one, in nats."},
    {"drift/abs_delta_p99", "tandem_trainer_drift_abs_delta_p99",
     "99th percentile of the absolute difference, in nats."},
    {"drift/mean_delta", "tandem_trainer_drift_mean_delta", "Mean difference, in nats."},
    {"drift/k1", "tandem_trainer_drift_k1", "KL of server against trainer, estimator k1, in nats."},
    {"drift/k3", "tandem_trainer_drift_k3", "KL of server against trainer, estimator k3, in nats.",
     1, -kNone, 1e-3},
    {"drift/chi2", "tandem_trainer_drift_chi2", "Chi-squared divergence of the two policies."},
    {"drift/ess_fraction", "tandem_trainer_drift_effective_samples_ratio",
     "Effective sample size over the number of tokens.", 1, 0.5, kNone},
    {"drift/mean_w", "tandem_trainer_drift_mean_weight",
     "Mean importance weight before any bound; 1 without drift.", 1, 0.5, 2},
    {"drift/max_weight", "tandem_trainer_drift_max_weight",
     "Largest importance weight before any bound."},
    {"drift/log_ppl_gap", "tandem_trainer_drift_log_perplexity_gap",
     "Difference of log-perplexities, in nats."},
    {"drift/pearson_probability", "tandem_trainer_drift_probability_correlation",
     "Correlation of the probabilities of drawn tokens."},
    {"drift/sequence_ess_fraction", "tandem_trainer_drift_sequence_effective_samples_ratio",
     "Effective sample size of completions over their number."},
    {"drift/num_nonfinite", "tandem_trainer_drift_nonfinite_tokens",
     "Tokens of the last step with a log-prob that is not finite."},
    {"drift/probe/mean_abs_delta", "tandem_trainer_drift_probe_mean_abs_delta",
     "Mean absolute difference over the fixed probe set, in nats."},
    {"drift/probe/lag", "tandem_trainer_drift_probe_lag_versions",
     "Versions the servers were behind when the probe set was scored."},
    {"correction/mean_weight", "tandem_trainer_correction_mean_weight",
     "Mean correction weight of kept tokens."},
    {"correction/capped_share", "tandem_trainer_correction_capped_ratio",
     "Share of kept tokens whose weight a bound moved."},
    {"correction/rejected_tokens", "tandem_trainer_correction_rejected_tokens",
     "Tokens of the last step that were not trained on."},
    {"loss/total", "tandem_trainer_loss", "Loss."},
    {"loss/policy", "tandem_trainer_policy_loss", "Policy part of the loss."},
    {"loss/clip_low_share", "tandem_trainer_clipped_low_ratio",
     "Share of tokens whose loss the lower clip decided."},
    {"loss/clip_high_share", "tandem_trainer_clipped_high_ratio",
     "Share of tokens whose loss the upper clip decided."},
    {"loss/entropy", "tandem_trainer_entropy_nats", "Mean entropy of the policy."},
    {"kl_reference/k3", "tandem_trainer_reference_kl_nats",
     "KL against the frozen reference, estimator k3."},
    {"optimizer/learning_rate", "tandem_trainer_learning_rate", "Learning rate."},
    {"optimizer/grad_norm", "tandem_trainer_gradient_norm",
     "Global gradient norm before clipping."},
    {"staleness/mean", "tandem_trainer_staleness_mean_versions",
     "Mean staleness of a trained token."},
    {"staleness/max", "tandem_trainer_staleness_max_versions",
     "Staleness of the oldest trained token."},
    {"push/seconds", "tandem_trainer_push_seconds",
     "Begin to commit of the last push, slowest server."},
    {"push/pause_ms", "tandem_trainer_push_pause_seconds",
     "How long the last push held back decode steps, slowest server.", 1e-3},
    {"push/bytes", "tandem_trainer_push_bytes", "Bytes of the last push over all servers."},
    {"push/changed_share", "tandem_trainer_push_changed_ratio",
     "Share of elements that the last push changed."},
    {"push/arrived_share", "tandem_trainer_push_arrived_ratio",
     "Part of the update that survives the cast to the servers' dtype."},
    {"throughput/sampled_tokens_per_s", "tandem_trainer_sampled_tokens_per_second",
     "Tokens sampled over the time spent waiting for them."},
    {"throughput/trained_tokens_per_s", "tandem_trainer_trained_tokens_per_second",
     "Tokens trained over the time of the step."},
    {"memory/peak_bytes", "tandem_trainer_memory_peak_bytes", "Most memory that rank 0 has held."},
    {"memory/device_peak_bytes", "tandem_trainer_device_memory_peak_bytes",
     "Most that LibTorch handed out on rank 0's device during the last step."},
    {"eval/greedy_share_correct", "tandem_trainer_eval_correct_ratio",
     "Share of held-out prompts answered right at temperature 0."},
};

}  // namespace

std::span<const ShownNumber> ShownNumbers() { return kShownNumbers; }

std::string HelpOf(const ShownNumber& shown) {
  std::string help(shown.help);
  if (std::isfinite(shown.low)) absl::StrAppend(&help, " Worth a look below ", shown.low, ".");
  if (std::isfinite(shown.high)) absl::StrAppend(&help, " Worth a look above ", shown.high, ".");
  return help;
}

}  // namespace tandem::trainer
