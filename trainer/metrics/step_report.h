// StepReport: every number of one train step that comes out of stages 4 to 8, under the names of
// metrics.jsonl (docs/metrics.md). Plain values; made by TrainStep, read by the trainer's loop.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/drift/drift_metrics.h"
#include "common/drift/drift_splits.h"
#include "trainer/ranks/cuda_device.h"

namespace tandem::trainer {

// 20 counts over w in [0, 4), bins of 0.2; the last one takes everything above.
using WeightHistogram = std::array<int64_t, 20>;

// The effect of the correction on a part of the trained tokens.
struct KeptShare {
  int64_t num_trained = 0, num_kept = 0;
  double weight_sum = 0;  // of the kept ones
};

// Completions by their trained tokens: at most 64, 512, 4096, and more.
inline constexpr std::array<int64_t, 3> kLengthEdges = {64, 512, 4096};

// Sums over kept tokens of one pass over the batch; weights before batch normalisation.
struct CorrectionNumbers {
  double weight_sum = 0, raw_weight_sum = 0, max_weight = 0;
  int64_t num_kept = 0, num_capped = 0, num_rejected = 0, num_nonfinite = 0;
  WeightHistogram hist_raw = {}, hist_truncated = {};
  KeptShare positive, negative;  // advantage > 0, < 0
  std::array<KeptShare, kLengthEdges.size() + 1> by_length;

  void Add(double raw_weight, double weight);
  // A trained token of a completion of `length` of them; `weight` is read when it is kept.
  void AddShare(double advantage, int64_t length, bool kept, double weight);
};

// Sums over the pairs of all updates (loss.kind preference), without their weights; rewards and
// log-probs are those of preference_loss.h, of the target policy.
struct PairNumbers {
  double num_pairs = 0;
  double loss = 0;
  double chosen_reward = 0, rejected_reward = 0, margin = 0, accuracy = 0;
  double chosen_logprob = 0, rejected_logprob = 0;  // of completions
};
// Its sums, each declared here alone. The report has their means over pairs, under the names of TRL.
struct PairNumber {
  const char* name;
  double PairNumbers::*sum;
};
inline constexpr PairNumber kPairNumbers[] = {
    {"loss/preference", &PairNumbers::loss},
    {"rewards/chosen", &PairNumbers::chosen_reward},
    {"rewards/rejected", &PairNumbers::rejected_reward},
    {"rewards/margins", &PairNumbers::margin},
    {"rewards/accuracies", &PairNumbers::accuracy},
    {"logps/chosen", &PairNumbers::chosen_logprob},
    {"logps/rejected", &PairNumbers::rejected_logprob},
};

// The pairs of the batch, each once: their weights of the correction, before batch normalisation,
// and their age in versions, which is that of the oldest token.
struct PairWeights {
  int64_t num_pairs = 0, num_kept = 0;
  int64_t num_bounded = 0;                       // whose weight was moved to a bound
  int64_t num_stale = 0, num_mixed = 0;          // with a token of older weights; of two versions
  double weight_sum = 0, weight_square_sum = 0;  // of kept pairs
  double staleness_sum = 0;
  int64_t staleness_max = 0;
};

// Sums over the tokens of all updates.
struct LossNumbers {
  double policy = 0, kl = 0, total = 0;  // means over updates, each after its division
  double ratio_sum = 0, ratio_max = 0;
  double clip_low = 0, clip_high = 0, dual_clip = 0;
  double entropy_sum = 0;
  double proximal_kl_sum = 0;     // LossSums::proximal_kl
  double k1 = 0, k2 = 0, k3 = 0;  // sums; only with a reference policy
  bool has_reference = false;
  int64_t num_tokens = 0;   // in the loss, counted once per update
  double denominator = 0;   // mean over updates
  int64_t num_updates = 0;  // tried
  bool kl_stopped = false;  // by target_kl, before the step's last update
  PairNumbers pairs;        // of loss.kind preference
};

// The numbers of LossNumbers that are gathered over tokens, each declared here alone: how rows,
// minibatches and ranks are put together, and under which name the report has it. A sum is
// reported as its mean over tokens.
struct TokenNumber {
  const char* name;  // in metrics.jsonl
  double LossNumbers::*value;
  bool is_max = false;           // the largest of all; else the sum
  bool needs_reference = false;  // only there with a reference policy
};
inline constexpr TokenNumber kTokenNumbers[] = {
    {"loss/ratio_mean", &LossNumbers::ratio_sum},
    {"loss/ratio_max", &LossNumbers::ratio_max, /*is_max=*/true},
    {"loss/clip_low_share", &LossNumbers::clip_low},
    {"loss/clip_high_share", &LossNumbers::clip_high},
    {"loss/dual_clip_share", &LossNumbers::dual_clip},
    {"loss/entropy", &LossNumbers::entropy_sum},
    {"loss/kl_proximal", &LossNumbers::proximal_kl_sum},
    {"kl_reference/k1", &LossNumbers::k1, false, /*needs_reference=*/true},
    {"kl_reference/k2", &LossNumbers::k2, false, /*needs_reference=*/true},
    {"kl_reference/k3", &LossNumbers::k3, false, /*needs_reference=*/true},
};

struct OptimizerNumbers {
  double learning_rate = 0, grad_norm = 0;  // of the last update
  bool grad_clipped = false;
  int64_t skipped_updates = 0;
  int64_t state_bytes = 0;  // of moments that this rank holds
};

// Bytes of parameters that this rank holds from step to step; moments: OptimizerNumbers.
struct HeldMemory {
  int64_t masters = 0, gradients = 0, reference = 0;
  // The peaks of a step, where they lie on a device; filled in by the learner.
  std::optional<CudaPeaks> device;
};

// The numbers of a critic; sums are over the tokens of all its updates.
struct CriticNumbers {
  double loss_sum = 0;
  int64_t num_clipped = 0, num_tokens = 0;
  int64_t num_updates = 0, skipped_updates = 0;
  double grad_norm = 0, learning_rate = 0;  // of the last update
  // Over the batch, before the first update.
  double value_mean = 0, target_mean = 0, explained_variance = 0;
  bool warms_up = false;   // the policy was not trained
  int64_t held_bytes = 0;  // of masters, gradients and moments that this rank holds
};

struct StepTimes {
  double pack_s = 0, proximal_s = 0, update_s = 0;
  double gradient_sum_wait_s = 0;  // of update_s: for other ranks, after the own backward passes
};

struct StepReport {
  // Not empty: no update had a finite loss and gradient; the weights are as they were.
  std::string skip_reason;
  offpolicy::DriftMetrics drift;
  std::vector<std::pair<offpolicy::SplitBy, std::vector<offpolicy::DriftBucket>>> drift_splits;
  std::vector<std::pair<std::string, double>>
      peer_metrics;  // drift under the names of other systems
  CorrectionNumbers correction;
  LossNumbers loss;
  OptimizerNumbers optimizer;
  std::optional<CriticNumbers> critic;
  std::optional<PairWeights> pairs;  // of loss.kind preference
  HeldMemory memory;
  int64_t reference_age = 0;  // train steps since the reference policy was set or reset
  double kl_coefficient = 0, penalty_coefficient = 0;  // that the step used
  double advantage_mean = 0, advantage_var = 0;        // over trained completions
  double kl_penalty = 0;  // kl_place reward: cost of a completion before centring, mean
  StepTimes times;
  int64_t num_tokens = 0;      // trained, once each
  int64_t num_row_tokens = 0;  // in packed rows, prompts included
  // [group in the span][completion][token]; empty for masked completions.
  std::vector<std::vector<std::vector<float>>> proximal_logprobs;
  // The advantages in the loss, laid out alike; with kl_place reward, after the charge.
  std::vector<std::vector<std::vector<float>>> advantages;
};

// The part of the device's peak that is not held from step to step: activations, casts and gathered
// parts of sharded parameters. 0 without a device.
int64_t TransientBytes(const StepReport& report);

// ("correction/mean_weight", value) ...: everything but histograms and advantage/, in a fixed
// order.
std::vector<std::pair<std::string, double>> NamedNumbers(const StepReport& report);

// ("drift/by_position", {"0-10%": {"tokens": 9, "mean_delta": [value, low, high], ...}, ...}) ...
std::vector<std::pair<std::string, std::string>> NamedDocuments(const StepReport& report);

}  // namespace tandem::trainer
