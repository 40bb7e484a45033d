#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/formats/plan_text.h"
#include "common/model/quantisation_plan.h"
#include "common/statistics/sample_statistics.h"
#include "drift_lab/hypotheses/hypothesis_families.h"

namespace tandem::drift {
namespace {

// A format is followed only if this share of the residual (a cosine) points towards it.
constexpr double kLeastFormatAlignment = 0.1;

// Finds the number formats of the weights. The rounding errors of different matrices are nearly
// independent, so a format that is right for some matrices explains their share of the residual, and
// leaving out a matrix that is not quantised always explains more.
class FormatSearch {
 public:
  FormatSearch(HypothesisSearch& search, Attempt without)
      : search_(search),
        without_(std::move(without)),
        residual_(Residuals(search.capture().behaviour_logprobs, without_.predicted)) {}

  const Attempt& without() const { return without_; }

  // `options`, or nothing tried where the model does not take them.
  absl::StatusOr<Attempt> Try(const QuantisationOptions& options) {
    const absl::StatusOr<QuantisationPlan> plan =
        MakeQuantisationPlan(search_.replay().config(), options);
    if (!plan.ok()) return without_;
    RecordHypothesis hypothesis = without_.hypothesis;
    hypothesis.weight_formats = PlanText(*plan);
    return search_.Try(hypothesis, Part::kWeightFormat);
  }

  // The share of the residual that the attempt points towards.
  double Aligned(const Attempt& attempt) const {
    if (attempt.hypothesis == without_.hypothesis) return 0;
    return offpolicy::Alignment(Residuals(attempt.predicted, without_.predicted), residual_);
  }

  // Leaves out, one by one, the sites and then the layers whose quantisation does not help.
  absl::StatusOr<Attempt> LeaveOut(QuantisationOptions options, Attempt best) {
    std::vector<std::string> places = {"head"};
    for (const std::string_view site : kSiteNames) places.emplace_back(site);
    for (int64_t layer = 0; layer < search_.replay().config().num_layers; ++layer) {
      places.push_back(absl::StrCat(layer));
    }
    for (const std::string& place : places) {
      if (best.fit.exact()) break;
      QuantisationOptions fewer = options;
      fewer.by_layer.emplace_back(place, "dtype");
      TANDEM_ASSIGN_OR_RETURN(Attempt attempt, Try(fewer));
      if (attempt.hypothesis == without_.hypothesis) continue;  // nothing is quantised any more
      if (!(attempt.fit.mean_abs < best.fit.mean_abs)) continue;
      best = std::move(attempt);
      options = std::move(fewer);
    }
    return best;
  }

 private:
  HypothesisSearch& search_;
  const Attempt without_;
  const std::vector<double> residual_;
};

// Formats of the whole model, the likeliest first.
std::vector<QuantisationOptions> WholeModels() {
  std::vector<QuantisationOptions> wholes = {
      {.weights = WeightScheme::kInt8},
      {.weights = WeightScheme::kInt8, .activations = Activations::kDtype},
      {.weights = WeightScheme::kFp8E4m3}};
  for (const int64_t group : {32, 64, 128}) {
    wholes.push_back({.weights = WeightScheme::kInt4Group, .group = group});
  }
  return wholes;
}

}  // namespace

absl::StatusOr<Attempt> SearchWeightFormat(HypothesisSearch& search, const Attempt& base) {
  TANDEM_ASSIGN_OR_RETURN(Attempt without, search.Without(base, Part::kWeightFormat));
  FormatSearch formats(search, std::move(without));
  Attempt best = base;
  struct Whole {
    QuantisationOptions options;
    Attempt attempt;
    double alignment = 0;
  };
  Whole closest;
  std::vector<QuantisationOptions> wholes = WholeModels();
  if (search.replay().ServesQuantised()) wholes.insert(wholes.begin(), QuantisationOptions());
  for (const QuantisationOptions& options : wholes) {
    TANDEM_ASSIGN_OR_RETURN(Attempt attempt, formats.Try(options));
    KeepBetter(attempt, best);
    if (best.fit.exact()) return best;
    const double alignment = formats.Aligned(attempt);
    if (closest.alignment < alignment) closest = {options, std::move(attempt), alignment};
  }
  if (closest.alignment < kLeastFormatAlignment) return best;
  TANDEM_RETURN_IF_ERROR(
      KeepBetter(formats.LeaveOut(closest.options, std::move(closest.attempt)), best));
  return best;
}

}  // namespace tandem::drift
