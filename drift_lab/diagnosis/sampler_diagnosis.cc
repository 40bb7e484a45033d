#include "drift_lab/diagnosis/sampler_diagnosis.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/statistics/distributions.h"

namespace tandem::drift {
namespace {

constexpr int kLikelihoodSteps = 4;
constexpr double kAlarm = 2.576;  // the abs(z) that one healthy capture in a hundred exceeds
// Probability mass that no token was sampled from, times the number of tokens. A healthy sampler
// exceeds it with probability e^-6.
constexpr double kMissingSamples = 6;
constexpr double kFilterSlack = 2e-6;
constexpr double kUpperQuantile = 0.975;  // of a two-sided 95 % interval

// The log-likelihood of the tokens (-inf with a token of probability 0), its slope in log(1/T),
// which is log p + H, and its information, which is the variance of log p.
struct Likelihood {
  double value = 0, slope = 0, information = 0;
  int64_t num_tokens = 0;
};

Likelihood LikelihoodOf(const EngineScores& scores) {
  Likelihood all;
  for (size_t t = 0; t < scores.logprobs.size(); ++t) {
    const double logprob = scores.logprobs[t], entropy = scores.entropies[t];
    if (std::isnan(logprob)) continue;
    ++all.num_tokens;
    all.value += logprob;
    all.slope += logprob + entropy;
    all.information += scores.logprob_second_moments[t] - entropy * entropy;
  }
  return all;
}

class SamplerSearch {
 public:
  SamplerSearch(const offpolicy::Capture& capture, RecordReplay& replay,
                const EngineScores& claimed, rollout::ScorePath path)
      : capture_(capture),
        replay_(replay),
        claimed_(claimed),
        path_(path),
        base_(LikelihoodOf(claimed)) {}

  absl::StatusOr<SamplerDiagnosis> Run() {
    out_.z = base_.information > 0 ? -base_.slope / std::sqrt(base_.information) : 0;
    double above = 0;
    for (const float mass : claimed_.mass_above) {
      if (std::isfinite(mass)) above = std::max<double>(above, mass);
    }
    const bool missing = (1 - above) * static_cast<double>(base_.num_tokens) > kMissingSamples;
    out_.suspicious = std::abs(out_.z) > kAlarm;
    if (!out_.suspicious && !missing) return std::move(out_);
    TANDEM_RETURN_IF_ERROR(Temperature());
    TANDEM_RETURN_IF_ERROR(Filters());
    std::ranges::sort(out_.candidates, std::ranges::greater(), &SamplerCandidate::gain);
    const SamplerCandidate& best = out_.candidates.front();
    out_.suspicious |= best.gain > kLeastLikelihoodGain;
    if (best.gain < kLeastLikelihoodGain) return std::move(out_);
    if (out_.candidates.size() > 1 && best.gain - out_.candidates[1].gain < kLeastLead)
      return std::move(out_);
    out_.named = best.cause;
    out_.named->evidence = absl::StrFormat(
        "record and replay agree, but the drawn tokens are likelier by %.1f nats under it than as "
        "recorded (calibration z %.1f over %d tokens)",
        best.gain, out_.z, base_.num_tokens);
    return std::move(out_);
  }

 private:
  // Finds the temperature of the largest likelihood by Newton's method; the log-likelihood is
  // concave in 1/T. The interval is that of the asymptotic normal distribution, in log T.
  absl::Status Temperature() {
    RecordHypothesis hypothesis;
    Likelihood at = base_;
    for (int i = 0; i < kLikelihoodSteps && at.information > 0; ++i) {
      const double step = at.slope / at.information;
      if (std::abs(step) * std::sqrt(at.information) < 0.02) break;  // standard errors
      hypothesis.temperature =
          std::clamp(hypothesis.temperature * std::exp(-std::clamp(step, -0.7, 0.7)), 0.2, 5.0);
      TANDEM_ASSIGN_OR_RETURN(at, LikelihoodUnder(hypothesis));
    }
    const double t = hypothesis.temperature;
    const double error = offpolicy::NormalQuantile(kUpperQuantile) / std::sqrt(at.information);
    DiagnosedCause cause{
        .part = Part::kTemperature,
        .label = absl::StrFormat("tokens drawn at temperature %.4g times the recorded one", t),
        .kind = StrengthKind::kInterval,
        .strength = {.value = t, .low = t * std::exp(-error), .high = t * std::exp(error)}};
    out_.candidates.push_back({std::move(cause), at.value - base_.value});
    return absl::OkStatus();
  }

  // Tries the tightest filter of each kind that leaves every sampled token in.
  absl::Status Filters() {
    double above = 0, gap = 0, rank = 0;
    for (size_t t = 0; t < claimed_.logprobs.size(); ++t) {
      if (std::isnan(claimed_.logprobs[t])) continue;
      above = std::max<double>(above, claimed_.mass_above[t]);
      gap = std::max<double>(gap, claimed_.gaps[t]);
      rank = std::max<double>(rank, claimed_.ranks[t]);
    }
    RecordHypothesis p, k, m;
    p.top_p = std::min(1.0, above * (1 + kFilterSlack) + kFilterSlack);
    if (p.top_p < 1) {
      TANDEM_RETURN_IF_ERROR(Filter(
          Part::kTopP, p, absl::StrFormat("tokens drawn with top-p %.4g", p.top_p), p.top_p));
    }
    k.top_k = static_cast<int64_t>(rank) + 1;
    TANDEM_RETURN_IF_ERROR(Filter(Part::kTopK, k, absl::StrCat("tokens drawn with top-k ", k.top_k),
                                  static_cast<double>(k.top_k)));
    m.min_p = std::exp(-gap / capture_.manifest.sampling.temperature) * (1 - kFilterSlack);
    if (m.min_p > 0 && m.min_p < 1) {
      TANDEM_RETURN_IF_ERROR(Filter(
          Part::kMinP, m, absl::StrFormat("tokens drawn with min-p %.4g", m.min_p), m.min_p));
    }
    return absl::OkStatus();
  }

  absl::Status Filter(Part part, const RecordHypothesis& hypothesis, std::string label,
                      double bound) {
    TANDEM_ASSIGN_OR_RETURN(const Likelihood at, LikelihoodUnder(hypothesis));
    DiagnosedCause cause{.part = part, .label = std::move(label), .kind = StrengthKind::kExact};
    cause.strength.value = bound;
    out_.candidates.push_back({std::move(cause), at.value - base_.value});
    return absl::OkStatus();
  }

  absl::StatusOr<Likelihood> LikelihoodUnder(const RecordHypothesis& hypothesis) {
    TANDEM_ASSIGN_OR_RETURN(const EngineScores scores, replay_.Score(hypothesis, {}, {path_}));
    return LikelihoodOf(scores);
  }

  const offpolicy::Capture& capture_;
  RecordReplay& replay_;
  const EngineScores& claimed_;
  const rollout::ScorePath path_;
  const Likelihood base_;
  SamplerDiagnosis out_;
};

}  // namespace

absl::StatusOr<SamplerDiagnosis> DiagnoseSampler(const offpolicy::Capture& capture,
                                                 RecordReplay& replay, const EngineScores& claimed,
                                                 rollout::ScorePath path) {
  return SamplerSearch(capture, replay, claimed, path).Run();
}

}  // namespace tandem::drift
