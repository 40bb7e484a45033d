#include "drift_lab/why/trainer_experiments.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/model/model_config.h"
#include "common/statistics/sample_statistics.h"
#include "drift_lab/recompute/capture_weights.h"
#include "drift_lab/recompute/trainer_forward.h"

namespace tandem::drift {
namespace {

using offpolicy::Capture;

constexpr int kTemperatureSteps = 8;
// Two passes of Twice; at the claimed temperature, the Newton steps, and three usual temperatures.
constexpr double kMostPasses = 2 + 1 + kTemperatureSteps + 3;
constexpr double kLeastTried = 0.1, kLargestTried = 10;

// The Gauss-Newton step of log(1/T): d log p / d log(1/T) = log p + H.
double StepOfTemperature(const std::vector<float>& record, const TrainerScores& scores) {
  std::vector<double> slope(record.size()), residual(record.size());
  for (size_t t = 0; t < record.size(); ++t) {
    slope[t] = double{scores.logprobs[t]} + scores.entropies[t];
    residual[t] = Residual(record[t], scores.logprobs[t]);
  }
  return offpolicy::FitSlope(slope, residual);
}

class TrainerAgain {
 public:
  TrainerAgain(const Attribution& attribution, TrainerForward& forward,
               const PassProgress& progress)
      : attribution_(attribution),
        capture_(attribution.capture),
        forward_(forward),
        progress_(progress) {}

  absl::StatusOr<TrainerTwice> Twice() {
    const std::vector<float>& first = attribution_.ablation.trainer_now;
    TrainerTwice twice;
    TANDEM_ASSIGN_OR_RETURN(const TrainerScores again, Score("trainer, once more", {}));
    twice.again_max_abs = MaxAbsDifference(first, again.logprobs, &twice.num_tokens);
    TANDEM_ASSIGN_OR_RETURN(const TrainerScores update,
                            Score("trainer, as an update", {.as_update = true}));
    twice.update_max_abs = MaxAbsDifference(first, update.logprobs, &twice.num_tokens);
    return twice;
  }

  absl::StatusOr<TrainerTemperature> Temperature() {
    const std::vector<float>& record = attribution_.ablation.proximal;
    const double claimed = capture_.manifest.sampling.temperature;
    TrainerTemperature fit{
        .recorded = attribution_.ablation.proximal_recorded, .claimed = claimed, .fitted = claimed};
    fit.before = fit.after = FitOf(record, attribution_.ablation.trainer_now);
    if (!fit.recorded || fit.before.exact()) return fit;
    ++fit.num_passes;
    TANDEM_ASSIGN_OR_RETURN(TrainerScores scores, Score("trainer, at other temperatures", {}));
    for (int i = 0; i < kTemperatureSteps && !fit.after.exact(); ++i) {
      const double next = std::clamp(fit.fitted * std::exp(-StepOfTemperature(record, scores)),
                                     kLeastTried, kLargestTried);
      TANDEM_ASSIGN_OR_RETURN(const bool better, Try(next, fit, scores));
      if (!better) break;
    }
    // The two usual mistakes (no temperature, or applied twice), and the nearest round number.
    for (const double usual : {1.0, claimed * claimed, std::round(fit.fitted * 1e4) / 1e4}) {
      if (fit.fitted == claimed || usual == fit.fitted || std::abs(usual / fit.fitted - 1) > 1e-3)
        continue;
      TANDEM_RETURN_IF_ERROR(Try(usual, fit, scores).status());
    }
    return fit;
  }

 private:
  absl::StatusOr<TrainerScores> Score(const std::string& what, const ScoreWay& way) {
    const double passes =
        attribution_.ablation.trainer_now == attribution_.ablation.proximal ? 2 : kMostPasses;
    const double before = num_passes_++;
    return forward_.ScoreIn(way, capture_, {}, [&](int64_t tokens) {
      const double share = static_cast<double>(tokens) / static_cast<double>(capture_.num_tokens());
      progress_(what, std::min(1.0, (before + share) / passes));
    });
  }
  // Takes `temperature` if it leaves less of the record than the fit so far.
  absl::StatusOr<bool> Try(double temperature, TrainerTemperature& fit, TrainerScores& scores) {
    ++fit.num_passes;
    TANDEM_ASSIGN_OR_RETURN(TrainerScores tried,
                            Score("trainer, at other temperatures", {.temperature = temperature}));
    const Fit after = FitOf(attribution_.ablation.proximal, tried.logprobs);
    if (after.mean_abs >= fit.after.mean_abs) return false;
    fit.fitted = temperature;
    fit.after = after;
    scores = std::move(tried);
    return true;
  }

  const Attribution& attribution_;
  const Capture& capture_;
  TrainerForward& forward_;
  const PassProgress& progress_;
  int num_passes_ = 0;
};

}  // namespace

std::vector<std::string> DropoutFields(const std::string& config_json) {
  std::vector<std::string> fields;
  const auto config = nlohmann::json::parse(config_json, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return fields;
  for (const auto& [name, value] : config.items()) {
    if (name.find("dropout") == std::string::npos || !value.is_number() || value.get<double>() <= 0)
      continue;
    fields.push_back(absl::StrCat(name, " ", value.get<double>()));
  }
  return fields;
}

absl::StatusOr<TrainerExperiments> RunTrainerExperiments(const Attribution& attribution,
                                                         const AttributionOptions& options,
                                                         const PassProgress& progress) {
  const Capture& capture = attribution.capture;
  const std::string model = options.model.empty() ? capture.manifest.model_path : options.model;
  TANDEM_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(model));
  const CaptureWeights weights(&capture, config, options.capture, options.weights);
  TANDEM_ASSIGN_OR_RETURN(const auto masters, weights.Masters(capture.manifest.proximal_version));
  TrainerForwardOptions forward_options = RecordedTrainer(capture, PackedRowTokens(capture));
  forward_options.trainable = true;
  TANDEM_ASSIGN_OR_RETURN(const auto forward,
                          TrainerForward::Create(config, masters, forward_options));
  TrainerAgain again(attribution, *forward, progress);
  TrainerExperiments result;
  TANDEM_ASSIGN_OR_RETURN(result.twice, again.Twice());
  TANDEM_ASSIGN_OR_RETURN(result.temperature, again.Temperature());
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadFile(model + "/config.json"));
  result.dropout = DropoutFields(text);
  return result;
}

}  // namespace tandem::drift
