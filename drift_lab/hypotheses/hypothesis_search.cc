#include "drift_lab/hypotheses/hypothesis_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "common/base/status_macros.h"

namespace tandem::drift {

double Residual(float record, float predicted) {
  if (std::isnan(record) || std::isnan(predicted)) return std::numeric_limits<double>::quiet_NaN();
  return std::clamp(static_cast<double>(record) - static_cast<double>(predicted), -kLargestResidual,
                    kLargestResidual);
}

Fit FitOf(const std::vector<float>& record, const std::vector<float>& predicted) {
  Fit fit;
  double sum = 0;
  int64_t matched = 0;
  for (size_t t = 0; t < record.size(); ++t) {
    const double residual = Residual(record[t], predicted[t]);
    if (std::isnan(residual)) continue;
    ++fit.num_tokens;
    sum += std::abs(residual);
    matched += std::abs(residual) <= kSameLogprob;
  }
  if (fit.num_tokens == 0) return fit;
  fit.mean_abs = sum / static_cast<double>(fit.num_tokens);
  fit.matched = static_cast<double>(matched) / static_cast<double>(fit.num_tokens);
  return fit;
}

std::vector<double> Residuals(const std::vector<float>& to, const std::vector<float>& from) {
  std::vector<double> residuals(from.size());
  for (size_t t = 0; t < from.size(); ++t) residuals[t] = Residual(to[t], from[t]);
  return residuals;
}

void KeepBetter(Attempt attempt, Attempt& best) {
  if (attempt.fit.mean_abs < best.fit.mean_abs) best = std::move(attempt);
}

absl::Status KeepBetter(absl::StatusOr<Attempt> attempt, Attempt& best) {
  TANDEM_RETURN_IF_ERROR(attempt.status());
  KeepBetter(*std::move(attempt), best);
  return absl::OkStatus();
}

absl::StatusOr<Attempt> HypothesisSearch::Without(const Attempt& base, Part part) {
  if (!base.hypothesis.Has(part)) return base;
  RecordHypothesis open = base.hypothesis;
  open.Clear(part);
  return Try(open, part);
}

absl::StatusOr<Attempt> HypothesisSearch::Try(const RecordHypothesis& hypothesis, Part part) {
  Attempt attempt{.hypothesis = hypothesis, .part = part};
  TANDEM_ASSIGN_OR_RETURN(attempt.scores, replay_.Score(hypothesis, wanted_, {path_}));
  if (!shifts_.empty()) {
    for (auto* column :
         {&attempt.scores.logprobs, &attempt.scores.entropies, &attempt.scores.kept_mass}) {
      *column = ShiftRows(*column, shifts_, capture_.token_offsets);
    }
  }
  attempt.predicted = attempt.scores.logprobs;
  attempt.fit = FitOf(capture_.behaviour_logprobs, attempt.predicted);
  tried_.push_back({hypothesis, attempt.fit.identical()});
  return attempt;
}

}  // namespace tandem::drift
