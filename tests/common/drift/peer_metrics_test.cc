#include "common/drift/peer_metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

#include "tests/common/drift/token_lines.h"
#include "tests/support/status_matchers.h"

namespace tandem::offpolicy {
namespace {

using ::tandem::testing::FailsWith;

// Two completions: w = 2, 1/2, 1/2 (product 1/2), and w = 4 (product 4). A masked token and one
// without a log-prob count nowhere.
TokenLines Lines() {
  TokenLines lines;
  lines.Add(0.2, 0.4, 1, 0);
  lines.Add(0.6, 0.3, 1, 0);
  lines.Add(0.5, 0.25, 1, 0);
  lines.Add(0.1, 0.4, 1, 1);
  lines.Add(0.9, 0.1, 1, 1, /*masked_in=*/false);
  lines.Add(0.0, 0.1, 1, 2);
  return lines;
}

std::map<std::string, double> Metrics(Peer peer, CorrectionKind kind, bool one_update = true,
                                      CorrectionMode mode = CorrectionMode::kDecoupled,
                                      bool batch_normalise = false) {
  const TokenLines lines = Lines();
  CorrectionOptions correction{.mode = mode, .kind = kind, .max_weight = 3};
  if (kind != CorrectionKind::kTokenTis && kind != CorrectionKind::kSequenceTis) {
    correction.min_weight = 0.75;
  }
  correction.batch_normalise = batch_normalise;
  std::map<std::string, double> metrics;
  for (const auto& [name, value] : PeerMetrics(peer, lines.view(), {correction, one_update})) {
    EXPECT_TRUE(metrics.emplace(name, value).second) << name << " twice";
  }
  return metrics;
}

const double kLogOf2 = std::log(2.0);

TEST(PeerMetricsTest, VerlMeasuresTheGapBeforeAnyClamp) {
  auto m = Metrics(Peer::kVerl, CorrectionKind::kOff);
  EXPECT_NEAR(m["rollout_corr/kl"], -kLogOf2 / 4, 1e-6);  // deltas 1, -1, -1, 2 times ln 2
  EXPECT_NEAR(m["rollout_corr/k3_kl"], 7.0 / 4 - 1 - kLogOf2 / 4, 1e-6);  // w sum to 7
  EXPECT_NEAR(m["rollout_corr/chi2_token"], (4 + 0.25 + 0.25 + 16) / 4 - 1, 1e-5);
  EXPECT_NEAR(m["rollout_corr/chi2_seq"], (0.25 + 16) / 2 - 1, 1e-5);  // of products
  // Trainer less server, per completion: ln 2 / 3 and -2 ln 2.
  EXPECT_NEAR(m["rollout_corr/log_ppl_diff"], -kLogOf2 * 5 / 6, 1e-6);
  EXPECT_NEAR(m["rollout_corr/log_ppl_abs_diff"], kLogOf2 * 7 / 6, 1e-6);
  EXPECT_NEAR(m["rollout_corr/log_ppl_diff_max"], kLogOf2 / 3, 1e-6);
  EXPECT_NEAR(m["rollout_corr/log_ppl_diff_min"], -2 * kLogOf2, 1e-6);
  EXPECT_NEAR(m["rollout_corr/ppl_ratio"], (std::cbrt(2.0) + 0.25) / 2, 1e-6);
  EXPECT_NEAR(m["rollout_corr/rollout_ppl"], (1 / std::cbrt(0.06) + 10) / 2, 1e-4);
  EXPECT_NEAR(m["training/rollout_probs_diff_mean"], (0.2 + 0.3 + 0.25 + 0.3) / 4, 1e-6);
  EXPECT_NEAR(m["training/rollout_probs_diff_max"], 0.3, 1e-6);
  EXPECT_EQ(m.count("rollout_corr/rollout_is_mean"), 0u) << "without weights there are none";
}

TEST(PeerMetricsTest, VerlsWeightsAreAfterTruncationAndItsFractionsBefore) {
  auto m = Metrics(Peer::kVerl, CorrectionKind::kTokenTis);
  const double applied[] = {2, 0.5, 0.5, 3};  // min(w, 3)
  const double mean = 6.0 / 4, square = (4 + 0.25 + 0.25 + 9) / 4;
  EXPECT_NEAR(m["rollout_corr/rollout_is_mean"], mean, 1e-6);
  EXPECT_NEAR(m["rollout_corr/rollout_is_max"], applied[3], 1e-6);
  EXPECT_NEAR(m["rollout_corr/rollout_is_min"], 0.5, 1e-6);
  EXPECT_NEAR(m["rollout_corr/rollout_is_std"], std::sqrt(square - mean * mean), 1e-6);
  EXPECT_NEAR(m["rollout_corr/rollout_is_eff_sample_size"], mean * mean / square, 1e-6);
  EXPECT_NEAR(m["rollout_corr/rollout_is_ratio_fraction_high"], 0.25, 1e-9);
  EXPECT_EQ(m["rollout_corr/rollout_is_ratio_fraction_low"], 0);  // under 1/3: the reciprocal
  EXPECT_NEAR(m["rollout_corr/rollout_is_seq_mean"], (1 + 3) / 2.0, 1e-6);
  EXPECT_NEAR(m["rollout_corr/rollout_is_seq_std"], std::sqrt(2.0), 1e-6);  // n - 1
  EXPECT_NEAR(m["rollout_corr/rollout_is_seq_max_deviation"], 2, 1e-6);
  EXPECT_NEAR(m["rollout_corr/rollout_is_seq_fraction_high"], 0.5, 1e-9);  // raw mean 4
  EXPECT_EQ(m.count("rollout_corr/rollout_is_oob_ratio"), 0u);
}

TEST(PeerMetricsTest, VerlsSequenceWeightsAreProductsWhoseExtremesAreRaw) {
  auto m = Metrics(Peer::kVerl, CorrectionKind::kSequenceTis, true, CorrectionMode::kDecoupled,
                   /*batch_normalise=*/true);
  EXPECT_NEAR(m["rollout_corr/rollout_is_mean"], (3 * 0.5 + 3) / 4, 1e-6);  // by tokens
  EXPECT_NEAR(m["rollout_corr/rollout_is_max"], 4, 1e-5);
  EXPECT_NEAR(m["rollout_corr/rollout_is_min"], 0.5, 1e-6);
  EXPECT_NEAR(m["rollout_corr/rollout_is_ratio_fraction_high"], 0.5, 1e-9);  // of completions
  EXPECT_NEAR(m["rollout_corr/rollout_is_batch_norm_factor"], (0.5 + 3) / 2, 1e-6);
}

TEST(PeerMetricsTest, VerlsIcePopZeroesWhatOursMasks) {
  auto m = Metrics(Peer::kVerl, CorrectionKind::kTokenMask);
  EXPECT_NEAR(m["rollout_corr/rollout_is_mean"], 2.0 / 4, 1e-6);  // only w = 2 lies in [0.75, 3]
  EXPECT_EQ(m["rollout_corr/rollout_is_min"], 0);
  EXPECT_NEAR(m["rollout_corr/rollout_is_oob_ratio"], 0.75, 1e-9);
  EXPECT_NEAR(m["rollout_corr/rollout_is_ratio_fraction_low"], 0.5, 1e-9);
  EXPECT_NEAR(m["rollout_corr/rollout_is_eff_sample_size"], 0.25, 1e-6);
}

TEST(PeerMetricsTest, WhatAPeerDoesNotHaveIsLeftOut) {
  EXPECT_EQ(Metrics(Peer::kVerl, CorrectionKind::kTokenClip).count("rollout_corr/rollout_is_mean"),
            0u);
  EXPECT_EQ(
      Metrics(Peer::kVerl, CorrectionKind::kGeometricMask).count("rollout_corr/rollout_is_mean"),
      0u);
  const auto bypass =
      Metrics(Peer::kVerl, CorrectionKind::kTokenTis, false, CorrectionMode::kBypass);
  EXPECT_EQ(bypass.count("rollout_corr/kl"), 0u) << "verl compares with the policy as it moves";
  EXPECT_EQ(bypass.count("training/rollout_probs_diff_mean"), 1u);
  EXPECT_TRUE(Metrics(Peer::kPrimeRl, CorrectionKind::kOff, /*one_update=*/false).empty());
  EXPECT_EQ(Metrics(Peer::kTrl, CorrectionKind::kOff).size(), 2u);
  EXPECT_EQ(Metrics(Peer::kNemoRl, CorrectionKind::kSequenceTis).size(), 4u);
}

TEST(PeerMetricsTest, NemoRlHasTheKlOfBothDirectionsAndJensenShannonsInK3Form) {
  auto m = Metrics(Peer::kNemoRl, CorrectionKind::kTokenClip);
  EXPECT_NEAR(m["train/token_mult_prob_error"], (2 + 2 + 2 + 4) / 4.0, 1e-5);
  EXPECT_NEAR(m["train/gen_kl_error"], 7.0 / 4 - 1 - kLogOf2 / 4, 1e-6);
  EXPECT_NEAR(m["train/policy_kl_error"], (0.5 + 2 + 2 + 0.25) / 4 - 1 + kLogOf2 / 4, 1e-6);
  EXPECT_NEAR(m["train/sampling_importance_ratio"], (2 + 0.75 + 0.75 + 3) / 4, 1e-6);
  EXPECT_NEAR(m["train/is_oob_ratio"], 0.75, 1e-9);
  // Half of each side against the mean of both; x - ln x - 1 contributes equally for w = 2 and w =
  // 1/2.
  const auto half = [](double p, double q) {
    const double x = 2 * p / (p + q), y = 2 * q / (p + q);
    return 0.5 * (x - std::log(x) - 1) + 0.5 * (y - std::log(y) - 1);
  };
  EXPECT_NEAR(m["train/js_divergence_error"], (3 * half(2, 1) + half(4, 1)) / 4, 1e-6);
  auto off = Metrics(Peer::kNemoRl, CorrectionKind::kOff);
  EXPECT_NEAR(off["train/sampling_importance_ratio"], 7.0 / 4, 1e-6);
  EXPECT_EQ(off.count("train/is_oob_ratio"), 0u);
}

TEST(PeerMetricsTest, TrlsSequenceMaskCountsRefusedCompletionsAsZero) {
  auto m = Metrics(Peer::kTrl, CorrectionKind::kSequenceMask);
  EXPECT_NEAR(m["sampling/sampling_logp_difference/mean"], kLogOf2 * 5 / 4, 1e-6);
  EXPECT_NEAR(m["sampling/sampling_logp_difference/max"], 2 * kLogOf2, 1e-6);
  // Products 1/2 and 4 are both outside [0.75, 3].
  EXPECT_EQ(m["sampling/importance_sampling_ratio/max"], 0);
  auto clip = Metrics(Peer::kTrl, CorrectionKind::kSequenceClip);
  EXPECT_NEAR(clip["sampling/importance_sampling_ratio/min"], 0.75, 1e-9);
  EXPECT_NEAR(clip["sampling/importance_sampling_ratio/mean"], (0.75 + 3) / 2, 1e-9);
  EXPECT_NEAR(clip["sampling/importance_sampling_ratio/max"], 3, 1e-9);
  auto tokens = Metrics(Peer::kTrl, CorrectionKind::kTokenTis);
  EXPECT_NEAR(tokens["sampling/importance_sampling_ratio/mean"], 1.5, 1e-6);
}

TEST(PeerMetricsTest, PrimeRlsMismatchIsK3OverTokens) {
  auto m = Metrics(Peer::kPrimeRl, CorrectionKind::kOff);
  EXPECT_NEAR(m["mismatch_kl/all/mean"], 7.0 / 4 - 1 - kLogOf2 / 4, 1e-6);
  EXPECT_NEAR(m["mismatch_kl/all/max"], 3 - 2 * kLogOf2, 1e-5);
}

TEST(PeerMetricsTest, ARecordWithoutTokensHasNoNumbers) {
  const TokenLines none;
  for (const char* name : {"verl", "nemo_rl", "trl", "prime_rl"}) {
    EXPECT_TRUE(PeerMetrics(ParsePeer(name).value(), none.view(), {}).empty()) << name;
  }
}

TEST(PeerMetricsTest, AnUnknownPeerIsRefusedWithThoseThatAreKnown) {
  EXPECT_THAT(ParsePeer("veRL").status(), FailsWith(absl::StatusCode::kInvalidArgument,
                                                    "none of verl, nemo_rl, trl, prime_rl"));
}

}  // namespace
}  // namespace tandem::offpolicy
