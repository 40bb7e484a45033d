// ReplayNumbers: what each correction would have made of one batch, computed from its coefficients
// and the inner products of the completions' gradients. Pure.
//
//   g          = sum_i g_i / D,  g_i = sum_t c_t grad log pi[t] over completion i; c and D are
//                those of EvaluateMethod
//   cosine     = <g, r> / (|g| |r|)
//   variance   = S / (S - 1) sum_i |g_i - mean g_i|^2 / D^2, of g, if the S completions were
//                independent
//   u_t        = -slope_t / A_t, the factor of A_t grad log pi[t] before D and the length's scale:
//                the weight of a correction, the factor of an objective, 0 for what either drops
//   ESS / N    = (sum u)^2 / (N sum u^2) over the N trained tokens with A != 0; times N it is the
//                number of effective tokens
//   kept       = share of those tokens with u != 0; the mean weight is that of u over them
//
// Tokens with A = 0 have no gradient under any method and appear in no number but D.
//
// Intervals resample groups (cluster_bootstrap.h), because the advantages within a group depend on
// each other. The coefficients, and what a method measures over the whole batch (batch_normalise,
// m2po's cutoff), stay fixed; D is resampled with the groups. A method that keeps tokens of fewer
// than kLeastClusters groups has no intervals. A number whose interval excludes the number itself
// has none either: norms and angles of sums of few noisy gradients are biased, and resampling adds
// to the bias.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "common/offpolicy/correction_method.h"
#include "common/statistics/cluster_bootstrap.h"
#include "drift_lab/replay/gradient_gram.h"
#include "drift_lab/replay/replay_variants.h"

namespace tandem::drift {

// A capture as the batch of one update, the first after sampling, so that the target policy is the
// proximal policy.
struct ReplayBatch {
  std::vector<double> behaviour, proximal, advantages;  // [T]
  std::vector<uint8_t> mask;                            // [T]
  std::vector<int64_t> completion;                      // [T] of the token, rising
  std::vector<int32_t> group;                           // [S] of the completion, rising

  offpolicy::MethodInputs inputs() const {
    return {behaviour, proximal, proximal, advantages, mask, completion};
  }
};

// What one variant makes of the batch.
struct VariantResult {
  const ReplayVariant* variant = nullptr;
  offpolicy::MethodResult method;
  // [N]: sum_i g_i = sum_n weights[n] (gradient of request n). Requests are sorted by completion.
  std::vector<double> weights;
};

struct LengthShare {
  std::string label;       // range of completion lengths
  int64_t num_tokens = 0;  // trained, A != 0
  double kept = 0, mean_weight = 0;
};

struct ReplayRow {
  ReplayVariant variant;
  double gradient_norm = 0, denominator = 0;               // |g|, D
  offpolicy::Interval norm_ratio;                          // |g| over |g| without correction
  std::array<offpolicy::Interval, kNumReferences> cosine;  // NaN if either is 0, or if withheld
  double variance = 0;                                     // with completions as independent units
  double variance_by_group = 0;  // with groups as independent units, which they are
  offpolicy::Interval ess_fraction;
  double effective_tokens = 0;
  offpolicy::Interval kept, kept_positive, kept_negative;
  offpolicy::Interval mean_weight_positive, mean_weight_negative;
  std::vector<LengthShare> by_length;
  // With a baseline: the share of its trained tokens that this variant drops or bounds.
  double baseline_share = std::numeric_limits<double>::quiet_NaN();
};

struct ReplayNumbers {
  std::vector<ReplayRow> rows;
  int64_t num_tokens = 0;       // trained, A != 0
  int64_t num_completions = 0;  // trained
  int64_t num_groups = 0;       // with a trained completion
  // Why nothing is compared with the product weights: their gradient is that of a few completions.
  // Empty if they are compared.
  std::string exact_withheld;
};

// `results` begin with the references. `request_completion` [N] is the completion of each request
// of `gram`.
ReplayNumbers ComputeReplayNumbers(const ReplayBatch& batch, std::span<const VariantResult> results,
                                   const GradientGram& gram,
                                   std::span<const int64_t> request_completion,
                                   const offpolicy::BootstrapOptions& options = {});

}  // namespace tandem::drift
