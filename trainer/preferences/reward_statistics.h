// How far a reward model can be trusted: accuracy and calibration on held-out pairs, its bias
// towards long completions, and the disagreement of an ensemble. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tandem::trainer {

// Rewards of pairs, both [P], finite. p = sigmoid(chosen - rejected) is the model's probability of
// the label.
struct JudgedPairs {
  std::span<const double> chosen, rejected;
};

// One row of a reliability table: pairs whose confidence max(p, 1 - p) lies in [low, high), and in
// the last bin high too.
struct ReliabilityBin {
  double low = 0, high = 0;
  int64_t num_pairs = 0;
  double confidence = 0;  // mean; 0 without pairs
  double accuracy = 0;    // share of pairs that are ranked right; a tie counts one half
};

// Calibration is measured on the confidence in the preferred completion and not on p itself, since
// every pair has the same label, "the first one is chosen".
struct PairCalibration {
  int64_t num_pairs = 0, num_ties = 0;
  double accuracy = 0;  // share with chosen > rejected, as in TRL: a tie is not accurate
  double expected_calibration_error = 0;  // sum over bins of share abs(accuracy - confidence)
  double brier_score = 0;                 // mean of (1 - p)^2
  std::vector<ReliabilityBin> bins;       // equally wide, from 1/2 to 1
};

// `num_bins` is at least 1. Numbers are 0 without pairs. The expected calibration error is that of
// Guo et al. 2017, arXiv 1706.04599.
PairCalibration MeasureCalibration(const JudgedPairs& pairs, int64_t num_bins);

// How much of the reward is length: the least-squares line through the origin of the differences of
// rewards on differences of lengths,
//
//   reward_c - reward_r = slope (length_c - length_r) + residual.
//
// Through the origin, because exchanging the two completions of a pair changes both signs. This is
// the linear, global case of Post-hoc Reward Calibration (Huang et al. 2024, arXiv 2409.17407),
// which subtracts a local regression of the reward on the length.
struct LengthBias {
  double slope = 0;           // reward per token; 0 if all pairs have equal lengths
  double standard_error = 0;  // of the slope; NaN with fewer than 2 pairs or equal lengths
  double correlation = 0;     // sum dr dl / sqrt(sum dr^2 sum dl^2); 0 if either is 0
};
LengthBias FitLengthBias(const JudgedPairs& pairs, std::span<const int64_t> chosen_tokens,
                         std::span<const int64_t> rejected_tokens);

// The reward without the part that the line explains: reward - slope (tokens - mean_tokens). Taking
// the mean length off keeps the mean reward.
inline double LengthControlled(double reward, int64_t tokens, double mean_tokens,
                               const LengthBias& bias) {
  return reward - bias.slope * (static_cast<double>(tokens) - mean_tokens);
}

// How the rewards of K heads become one (Coste et al. 2023, arXiv 2310.02743; Eisenstein et al.
// 2023, arXiv 2312.09244).
//   kMean          the mean
//   kMin           the smallest: "worst-case optimisation"
//   kMeanMinusStd  mean - std_weight * standard deviation (Coste et al. subtract the variance)
enum class EnsembleAggregation { kMean, kMin, kMeanMinusStd };

struct EnsembleRewards {
  std::vector<double> reward;        // [N]
  std::vector<double> disagreement;  // [N]: standard deviation over the heads, divisor K
};

// `rewards` is [K, N], row-major, K = num_heads >= 1.
EnsembleRewards AggregateEnsemble(std::span<const double> rewards, int64_t num_heads,
                                  EnsembleAggregation aggregation, double std_weight);

}  // namespace tandem::trainer
