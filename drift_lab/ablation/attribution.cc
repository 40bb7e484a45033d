#include "drift_lab/ablation/attribution.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/status_macros.h"
#include "common/model/model_config.h"
#include "drift_lab/recompute/capture_weights.h"

namespace tandem::drift {
namespace {

using offpolicy::Capture;
using offpolicy::TokenRecord;

AloneSample MeasureAlone(const Capture& capture, const Ablation& ablation) {
  AloneSample sample;
  for (int64_t s = 0; s < capture.num_completions(); ++s) {
    const int64_t before = sample.num_tokens;
    for (int64_t t = capture.begin_of(s); t < capture.begin_of(s + 1); ++t) {
      const double difference = static_cast<double>(ablation.alone[static_cast<size_t>(t)]) -
                                ablation.replay.logprobs[static_cast<size_t>(t)];
      if (!std::isfinite(difference)) continue;
      ++sample.num_tokens;
      sample.max_abs = std::max(sample.max_abs, std::abs(difference));
    }
    sample.num_completions += sample.num_tokens > before;
  }
  return sample;
}

}  // namespace

absl::StatusOr<Attribution> Attribute(const AttributionOptions& options,
                                      const PassProgress& progress) {
  TANDEM_ASSIGN_OR_RETURN(Capture capture, offpolicy::ReadCapture(options.capture));
  return AttributeCapture(std::move(capture), options, progress);
}

absl::StatusOr<Attribution> AttributeCapture(Capture given, AttributionOptions options,
                                             const PassProgress& progress) {
  Attribution result{.path = options.capture, .capture = std::move(given)};
  Capture& capture = result.capture;
  if (options.model.empty()) options.model = capture.manifest.model_path;
  TANDEM_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(options.model));
  const CaptureWeights weights(&capture, config, options.capture, options.weights);
  TANDEM_ASSIGN_OR_RETURN(result.findings,
                          CheckConsistency(capture, config, options.model, weights));
  if (!result.findings.empty()) return result;

  TANDEM_ASSIGN_OR_RETURN(result.ablation, RunAblation(capture, weights, options, progress));
  capture.proximal_logprobs = result.ablation.proximal;
  const offpolicy::CaptureRecord columns = MakeCaptureRecord(capture);
  const TokenRecord record = RecordOf(capture, columns);
  const offpolicy::BootstrapOptions bootstrap{.replicates = options.bootstrap_replicates,
                                              .seed = options.seed};
  result.by_sequence = ComputeDriftMetrics(record, offpolicy::ClusterBy::kSequence, bootstrap);
  result.by_group = ComputeDriftMetrics(record, offpolicy::ClusterBy::kGroup, bootstrap);
  for (const offpolicy::SplitBy by : offpolicy::kAllSplits) {
    if (by == offpolicy::SplitBy::kTurn && record.turn.empty()) continue;
    result.splits.emplace_back(by, BucketDrift(record, by, bootstrap));
  }
  result.token_parts = SplitTokens(result.ablation);
  result.shares = ComputePartShares(record, result.token_parts, bootstrap);
  result.additive =
      ComputeAdditiveSplit(record,
                           {result.ablation.replay.logprobs, result.ablation.trainer_cast,
                            result.ablation.trainer_packed},
                           bootstrap);
  result.alone = MeasureAlone(capture, result.ablation);
  result.verdict = Judge(result.shares, result.ablation.diagnosis, result.ablation.sampler,
                         result.by_sequence.Get("calibration_z"));
  return result;
}

}  // namespace tandem::drift
