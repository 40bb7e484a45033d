// ReplayNumbers: what each correction would have made of one batch, from its coefficients and the
// inner products of the completions' gradients. Pure.
//
//   g = sum_i g_i / D            g_i = sum_t c_t grad log pi[t] over completion i; c and D:
//   EvaluateMethod cosine(g, r) = <g, r> / (|g| |r|) variance = S / (S - 1) sum_i |g_i - mean
//   g_i|^2 / D^2: of g, were the S completions independent u_t      = -slope_t / A_t, what
//   multiplies A_t grad log pi[t] before D and the length's scale:
//              the weight of a correction, the factor of an objective, 0 for what either drops
//   ESS / N  = (sum u)^2 / (N sum u^2) over the N trained tokens with A != 0; effective tokens: N
//   times it kept     = share of those tokens with u != 0;  mean weight: of u over the kept ones
//
// Tokens with A = 0 have no gradient under any method and are in no number but D.
//
// Intervals: groups are drawn again (cluster_bootstrap.h), since a group's advantages depend on
// each other. Coefficients and what a method measures over the whole batch (batch_normalise, m2po's
// cutoff) stay as they were; D is drawn with the groups. A method that keeps tokens of fewer than
// kLeastClusters groups has no intervals, and a number that its own samples exclude has none
// either: lengths and angles of sums of few noisy gradients are biased, in samples of samples more
// so.
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

// A capture as the batch of one update, the first after sampling: target and proximal policy are
// one.
struct ReplayBatch {
  std::vector<double> behaviour, proximal, advantages;  // [T]
  std::vector<uint8_t> mask;                            // [T]
  std::vector<int64_t> completion;                      // [T] rising
  std::vector<int32_t> group;                           // [S] of a completion; rising

  offpolicy::MethodInputs inputs() const {
    return {behaviour, proximal, proximal, advantages, mask, completion};
  }
};

// Of one variant.
struct VariantResult {
  const ReplayVariant* variant = nullptr;
  offpolicy::MethodResult method;
  // [N]: sum_i g_i = sum_n weights[n] (gradient of request n); requests come by completion.
  std::vector<double> weights;
};

struct LengthShare {
  std::string label;       // tokens of the completion
  int64_t num_tokens = 0;  // trained, A != 0
  double kept = 0, mean_weight = 0;
};

struct ReplayRow {
  ReplayVariant variant;
  double gradient_norm = 0, denominator = 0;               // |g|, D
  offpolicy::Interval norm_ratio;                          // |g| over that without correction
  std::array<offpolicy::Interval, kNumReferences> cosine;  // NaN where either is 0, or is withheld
  double variance = 0, variance_by_group = 0;  // the latter were groups independent, as they are
  offpolicy::Interval ess_fraction;
  double effective_tokens = 0;
  offpolicy::Interval kept, kept_positive, kept_negative;
  offpolicy::Interval mean_weight_positive, mean_weight_negative;
  std::vector<LengthShare> by_length;
  // With a null: the share of its trained tokens that this variant drops or bounds.
  double null_share = std::numeric_limits<double>::quiet_NaN();
};

struct ReplayNumbers {
  std::vector<ReplayRow> rows;
  int64_t num_tokens = 0;       // trained, A != 0
  int64_t num_completions = 0;  // trained
  int64_t num_groups = 0;       // with a trained completion
  // Why nothing is compared with the product weights, whose gradient then is that of a few
  // completions; empty: it is compared.
  std::string exact_withheld;
};

// `results`: the references first. `request_completion` [N]: of each request of `gram`.
ReplayNumbers ComputeReplayNumbers(const ReplayBatch& batch, std::span<const VariantResult> results,
                                   const GradientGram& gram,
                                   std::span<const int64_t> request_completion,
                                   const offpolicy::BootstrapOptions& options = {});

}  // namespace tandem::drift
