#include "drift_lab/replay/replay.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/model_config.h"
#include "drift_lab/recompute/capture_weights.h"
#include "drift_lab/recompute/trainer_forward.h"
#include "drift_lab/replay/coefficient_basis.h"
#include "drift_lab/replay/gradient_gram.h"

namespace tandem::drift {
namespace {

using offpolicy::Capture;
using offpolicy::MethodResult;

ReplayBatch BatchOf(const Capture& capture) {
  const offpolicy::CaptureRecord columns = MakeCaptureRecord(capture);
  return {.behaviour = {capture.behaviour_logprobs.begin(), capture.behaviour_logprobs.end()},
          .proximal = {capture.proximal_logprobs.begin(), capture.proximal_logprobs.end()},
          .advantages = {capture.advantages.begin(), capture.advantages.end()},
          .mask = columns.mask,
          .completion = {columns.sequence.begin(), columns.sequence.end()},
          .group = capture.group};
}

bool HasProximal(const Capture& capture) {
  return std::ranges::any_of(capture.proximal_logprobs, [](float x) { return std::isfinite(x); });
}

absl::Status CheckBaseline(const std::string& path, const Capture& baseline,
                           const ModelConfig& config) {
  const auto refuse = [&](const std::string& why) {
    return InvalidArgument(path, " is not a baseline: ", why);
  };
  if (!baseline.manifest.injected.empty()) {
    return refuse(absl::StrCat("faults were injected (", baseline.manifest.injected.front(), ")"));
  }
  std::set<int64_t> versions(baseline.weight_version.begin(), baseline.weight_version.end());
  versions.insert(baseline.manifest.proximal_version);
  std::set<std::string> masters;
  for (const int64_t version : versions) {
    const offpolicy::CapturedWeights* const weights = baseline.WeightsOf(version);
    if (weights != nullptr && !weights->masters_digest.empty()) {
      masters.insert(weights->masters_digest);
    }
  }
  if (masters.size() > 1) {
    return refuse(
        absl::StrCat("its tokens and its step belong to ", masters.size(),
                     " different weights; a baseline run has trainer.optimizer.learning_rate 0"));
  }
  if (!HasProximal(baseline)) {
    return refuse("no trainer re-scored it; capture a run with trainer.capture.every");
  }
  const std::vector<ConsistencyFinding> findings = CheckCaptureConsistency(baseline, config);
  return findings.empty() ? absl::OkStatus() : refuse(findings.front().message);
}

absl::StatusOr<std::vector<Capture>> ReadBaselines(const std::vector<std::string>& paths,
                                                   const ModelConfig& config) {
  std::vector<Capture> baselines;
  for (const std::string& path : paths) {
    TANDEM_ASSIGN_OR_RETURN(baselines.emplace_back(), offpolicy::ReadCapture(path));
    TANDEM_RETURN_IF_ERROR(CheckBaseline(path, baselines.back(), config));
  }
  return baselines;
}

BaselineNoise NoiseOf(const std::vector<Capture>& baselines) {
  std::vector<offpolicy::CaptureRecord> columns;
  for (const Capture& baseline : baselines) columns.push_back(MakeCaptureRecord(baseline));
  std::vector<offpolicy::TokenRecord> records;
  for (size_t i = 0; i < baselines.size(); ++i)
    records.push_back(RecordOf(baselines[i], columns[i]));
  return MeasureBaseline(records);
}

// The share of the baselines' trained tokens that the method drops or bounds.
absl::StatusOr<double> BaselineShare(const std::vector<Capture>& baselines,
                                     const offpolicy::MethodOptions& options) {
  double touched = 0, trained = 0;
  for (const Capture& baseline : baselines) {
    const ReplayBatch batch = BatchOf(baseline);
    TANDEM_ASSIGN_OR_RETURN(const MethodResult result, EvaluateMethod(batch.inputs(), options));
    const offpolicy::Correction& c = result.correction;
    const offpolicy::Objective& o = result.objective;
    touched += static_cast<double>(c.num_rejected - c.num_nonfinite + c.num_capped +
                                   o.num_clip_low + o.num_clip_high + o.num_dual_clip);
    trained += static_cast<double>(std::ranges::count(batch.mask, 1));
  }
  return trained > 0 ? std::min(1.0, touched / trained) : 0;
}

absl::StatusOr<std::unique_ptr<TrainerForward>> MakeForward(const Capture& capture,
                                                            const ModelConfig& config,
                                                            const CaptureWeights& weights) {
  TANDEM_ASSIGN_OR_RETURN(const auto masters, weights.Masters(capture.manifest.proximal_version));
  TrainerForwardOptions options = RecordedTrainer(capture, /*row_tokens=*/0);
  options.trainable = true;
  return TrainerForward::Create(config, masters, options);
}

absl::StatusOr<std::vector<VariantResult>> EvaluateAll(const ReplayBatch& batch,
                                                       const std::vector<ReplayVariant>& variants) {
  std::vector<VariantResult> results;
  for (const ReplayVariant& variant : variants) {
    TANDEM_ASSIGN_OR_RETURN(MethodResult method, EvaluateMethod(batch.inputs(), variant.options));
    results.push_back({.variant = &variant, .method = std::move(method)});
  }
  return results;
}

// The backward passes that all variants together need, by completion. Fills in the weights with
// which each variant combines them.
std::vector<GradientRequest> PlanGradients(const Capture& capture,
                                           std::vector<VariantResult>& results) {
  std::vector<GradientRequest> requests;
  for (int64_t s = 0; s < capture.num_completions(); ++s) {
    const auto begin = static_cast<size_t>(capture.begin_of(s));
    const size_t length = capture.ids(s).size();
    std::vector<std::span<const double>> rows;
    for (const VariantResult& result : results) {
      rows.push_back(std::span(result.method.coefficient).subspan(begin, length));
    }
    CoefficientBasis basis = SpanOf(rows);
    for (std::vector<double>& direction : basis.directions) {
      requests.push_back({s, std::move(direction)});
    }
    for (size_t m = 0; m < results.size(); ++m) {
      results[m].weights.insert(results[m].weights.end(), basis.weights[m].begin(),
                                basis.weights[m].end());
    }
  }
  return requests;
}

absl::Status MeasureVariants(const std::vector<ReplayVariant>& variants, uint64_t seed,
                             TrainerForward& forward, const PassProgress& progress,
                             Replay& replay) {
  const ReplayBatch batch = BatchOf(replay.capture);
  TANDEM_ASSIGN_OR_RETURN(std::vector<VariantResult> results, EvaluateAll(batch, variants));
  const std::vector<GradientRequest> requests = PlanGradients(replay.capture, results);
  if (requests.empty()) {
    return InvalidArgument(
        replay.path,
        " has no trained token with an advantage other than 0: no correction makes an "
        "update of it. Capture a step in which rewards of a group differ");
  }
  const auto count = static_cast<double>(requests.size());
  const std::string what = absl::StrCat("gradients, ", requests.size(), " backward passes");
  progress(what, 0);
  TANDEM_ASSIGN_OR_RETURN(
      const GradientGram gram,
      ComputeGradientGram(forward, replay.capture, requests, seed, [&](int64_t done) {
        progress(what, static_cast<double>(done) / count);
      }));
  replay.num_parameters = gram.num_parameters;
  replay.num_backward_passes = gram.size;
  replay.relative_error = gram.relative_error;
  replay.max_rescore_difference = MaxAbsDifference(gram.logprobs, replay.capture.proximal_logprobs);
  std::vector<int64_t> completions;
  for (const GradientRequest& request : requests) completions.push_back(request.completion);
  progress("intervals", 1);
  replay.numbers = ComputeReplayNumbers(batch, results, gram, completions, {.seed = seed});
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Replay> RunReplay(const ReplayOptions& options, const PassProgress& progress) {
  Replay replay{.path = options.capture, .baselines = options.baselines};
  TANDEM_ASSIGN_OR_RETURN(std::vector<ReplayVariant> variants, SelectVariants(options.selection));
  TANDEM_ASSIGN_OR_RETURN(replay.capture, offpolicy::ReadCapture(options.capture));
  Capture& capture = replay.capture;
  const std::string model = options.model.empty() ? capture.manifest.model_path : options.model;
  TANDEM_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(model));
  const CaptureWeights weights(&capture, config, options.capture, options.weights);
  progress("consistency checks", 0);
  TANDEM_ASSIGN_OR_RETURN(replay.findings, CheckConsistency(capture, config, model, weights));
  if (!replay.findings.empty()) return replay;
  if (!HasProximal(capture)) {
    return InvalidArgument(
        options.capture,
        " was never in a trainer: it has neither advantages nor proximal log-probs. "
        "Capture a step of a run (trainer.capture.every)");
  }

  TANDEM_ASSIGN_OR_RETURN(const std::vector<Capture> baselines,
                          ReadBaselines(options.baselines, config));
  if (!baselines.empty()) {
    replay.baseline_noise = NoiseOf(baselines);
    const std::vector<ReplayVariant> chosen = BaselineVariants(
        options.selection.methods, replay.baseline_noise, options.baseline_rates, replay.notes);
    variants.insert(variants.end(), chosen.begin(), chosen.end());
  }
  TANDEM_ASSIGN_OR_RETURN(const auto forward, MakeForward(capture, config, weights));
  TANDEM_RETURN_IF_ERROR(MeasureVariants(variants, options.seed, *forward, progress, replay));
  for (ReplayRow& row : replay.numbers.rows) {
    if (baselines.empty()) break;
    TANDEM_ASSIGN_OR_RETURN(row.baseline_share, BaselineShare(baselines, row.variant.options));
  }
  return replay;
}

}  // namespace tandem::drift
