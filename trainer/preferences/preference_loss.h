// Losses of preference learning: value and exact derivative, in fp64, from summed log-probs of
// completions. Pure.
//
// The model pass sums the log-probs of the tokens of each completion (never those of the prompt),
// calls these functions, and backpropagates the slopes: the derivative of the loss by the log-prob
// of a token is the slope of its completion times TokenWeight.
//
// For a pair with chosen completion c and rejected completion r, with the sums log pi of the target
// and log pi_ref of the reference policy, n tokens in a completion, and margin m (0 if there is
// none):
//
//   ratio_c = log pi(c) - log pi_ref(c), ratio_r likewise       h = beta (ratio_c - ratio_r) - m
//
//   dpo        -(1 - e) log sigmoid(h) - e log sigmoid(-h), e = label_smoothing
//              Rafailov et al. 2023, arXiv 2305.18290; with e > 0 "conservative DPO" (Mitchell
//              2023); with m ODPO (Amini et al. 2024, arXiv 2402.10571)
//   dpo_norm   the same with h = beta (ratio_c / n_c - ratio_r / n_r) - m
//              Lambert et al. 2024 (Tulu 3), arXiv 2411.15124; TRL's sigmoid_norm
//   dpo_hinge  max(0, 1 - h)
//              Liu et al. 2023 (RSO's hinge-norm), arXiv 2309.06657; SLiC-HF (Zhao et al. 2023,
//              arXiv 2305.10425) has the hinge without a reference policy and with an NLL term
//   ipo        (ratio_c / n_c - ratio_r / n_r - 1 / (2 beta))^2
//              Azar et al. 2023, arXiv 2310.12036, eq. 17, which has no n; TRL divides by it, and
//              reports that its authors did so in their experiments
//   robust     (-(1 - e) log sigmoid(h) + e log sigmoid(-h)) / (1 - 2 e)
//              Chowdhury et al. 2024, arXiv 2403.00409: an unbiased estimate of dpo's loss on
//              labels without flips, so it is negative at times
//   exo        KL((sigmoid(h), sigmoid(-h)) || (1 - e, e)) with m = 0
//              Ji et al. 2024, arXiv 2402.00856, eq. 16
//   apo_zero   1 - sigmoid(beta ratio_c) + sigmoid(beta ratio_r)
//   apo_down   sigmoid(beta ratio_c) + 1 - sigmoid(beta (ratio_c - ratio_r))
//              D'Oosterlinck et al. 2024, arXiv 2408.06266, eq. 7 and 8
//   cpo        dpo's loss with h = beta (log pi(c) - log pi(r)) - m, plus the NLL term
//              Xu et al. 2024, arXiv 2401.08417
//   simpo      dpo's loss with h = beta (log pi(c) / n_c - log pi(r) / n_r) - gamma - m
//              Meng et al. 2024, arXiv 2405.14734
//   orpo       -beta log sigmoid(log(odds_c / odds_r)) plus the NLL term, where odds = p / (1 - p)
//              and log p = log pi / n; Hong et al. 2024, arXiv 2403.07691
//
// The NLL term is NllWeight times the negative log-likelihood of the chosen tokens, averaged over
// the tokens of the batch as in TRL. Pang et al. 2024 (iterative RPO, arXiv 2404.19733) average
// over each completion first.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "trainer/preferences/preference_loss_options.h"

namespace tandem::trainer {

// All [P], parallel, finite. Spans that a loss does not read may be empty.
struct PreferencePairs {
  std::span<const double> chosen_logprobs, rejected_logprobs;  // DesensitisedSum of the target
  std::span<const double> reference_chosen_logprobs, reference_rejected_logprobs;
  std::span<const int64_t> chosen_tokens, rejected_tokens;  // of the completions; at least 1
  std::span<const double> margins;                          // empty: 0
  // Read if NllWeight is not 0: the sum of -log pi over the tokens of the NLL term, and their
  // number. These are the chosen completion's, or for orpo as in TRL the prompt's too.
  std::span<const double> chosen_nll;
  std::span<const int64_t> nll_tokens;
  // The mean of nll_tokens over a batch that is larger than this call. Without it, the batch is
  // this call.
  std::optional<double> batch_nll_tokens = {};
};

// The loss of the batch is the sum of the values divided by its number of pairs; slopes are
// derivatives of the sum. All [P].
struct PreferenceLoss {
  std::vector<double> value;
  std::vector<double> chosen_slope, rejected_slope;  // by chosen_logprobs, rejected_logprobs
  std::vector<double> nll_slope;                     // by chosen_nll
  // Implicit rewards: beta times ratio; without a reference, beta times log pi, for simpo and orpo
  // per token. As in TRL.
  std::vector<double> chosen_reward, rejected_reward;
};

// `options` have passed CheckOptions; the kind is not kto.
PreferenceLoss ComputePreferenceLoss(const PreferencePairs& pairs,
                                     const PreferenceLossOptions& options);

// What a batch of pairs is reported by. Means over its pairs; 0 for an empty batch.
struct PreferenceMetrics {
  double loss = 0;
  double chosen_reward = 0, rejected_reward = 0;
  double margin = 0;    // chosen_reward - rejected_reward
  double accuracy = 0;  // share of pairs with chosen_reward > rejected_reward
};
PreferenceMetrics SummarisePreferences(const PreferenceLoss& loss);

// LD-DPO (Liu et al. 2024, arXiv 2409.06411): tokens beyond the length of the pair's shorter
// completion count by ld_alpha. `index` counts the tokens of a completion from 0.
inline double TokenWeight(int64_t index, int64_t shorter_length, double ld_alpha) {
  return index < shorter_length ? 1 : ld_alpha;
}

// The sum of the log-probs [n] of a completion, each times its TokenWeight. With ld_alpha 1 this is
// the plain sum.
double DesensitisedSum(std::span<const double> logprobs, int64_t shorter_length, double ld_alpha);

// KTO (Ethayarajh et al. 2024, arXiv 2402.01306, eq. 7): single completions that are desirable or
// not, compared with a reference point z0 that all of a batch share.
//
//   desirable    desirable_weight   (1 - sigmoid(beta (ratio - z0)))
//   undesirable  undesirable_weight (1 - sigmoid(beta (z0 - ratio)))

// All [N], parallel, finite.
struct LabelledLogprobs {
  std::span<const double> logprobs, reference_logprobs;
  std::span<const uint8_t> desirable;
};

struct KtoLoss {
  std::vector<double> value, slope;  // [N]; slope by logprobs
  std::vector<double> reward;        // [N]: beta times ratio
};

// z0 is a number and not a function of the log-probs, so no slope contains its derivative.
KtoLoss ComputeKtoLoss(const LabelledLogprobs& completions, double reference_point,
                       const PreferenceLossOptions& options);

// An estimate of KL(target || reference), at least 0: the mean log ratio of mismatched completions,
// those of other prompts. `log_ratio_sum` adds up log pi - log pi_ref over `count` of them, of all
// ranks; 0 if there are none.
double KtoReferencePoint(double log_ratio_sum, int64_t count);

// Which completion stands in for that of row `index` in the mismatched pairs of `count` >= 2 rows:
// that of the row before, as in TRL.
constexpr int64_t MismatchedCompletion(int64_t index, int64_t count) {
  return (index + count - 1) % count;
}

}  // namespace tandem::trainer
