#include "drift_lab/referee/column_transforms.h"

#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

namespace tandem::drift {

std::vector<ColumnTransform> ColumnTransforms(std::span<const double> own,
                                              std::span<const double> model,
                                              std::span<const int64_t> rows, const TokenSet& tokens,
                                              double temperature) {
  std::vector<ColumnTransform> out;
  // `slope` is that of the value over the log-prob.
  const auto add = [&](const char* cause, const char* text, const auto& value, const auto& slope) {
    ColumnTransform transform{cause, text, {}, tokens};
    for (size_t i = 0; i < own.size(); ++i) {
      transform.values.push_back(value(i));
      transform.tokens.scale[i] *= slope(i);
      transform.tokens.rounding[i] *= slope(i);
    }
    out.push_back(std::move(transform));
  };
  const auto divide = [&](const char* cause, const char* text, std::span<const double> of,
                          double by) {
    add(
        cause, text, [&](size_t i) { return of[i] / by; }, [&](size_t) { return 1 / by; });
  };
  divide("log_base", "log-probs are in base 2", own, std::log(2.0));
  divide("log_base", "log-probs are in base 10", own, std::log(10.0));
  const auto probability = [&](size_t i) { return std::exp(own[i]); };
  add("log_base", "probabilities in place of their logs", probability, probability);
  if (temperature > 0 && temperature != 1) {
    divide("temperature_after_softmax",
           "log-probs of the model divided by the temperature, in place of its logits, so that the "
           "probabilities do not add up to 1",
           model, temperature);
  }
  for (const auto& [step, text] : {std::pair(1, "values are those of the token after"),
                                   std::pair(-1, "values are those of the token before")}) {
    ColumnTransform shifted{"shift", text, {}, tokens};
    for (size_t i = 0; i < own.size(); ++i) {
      const size_t j = i + static_cast<size_t>(step);  // wraps around before the first
      const bool there = j < own.size() && rows[j] == rows[i];
      shifted.values.push_back(there ? own[j] : std::numeric_limits<double>::quiet_NaN());
      if (!there) continue;
      shifted.tokens.scale[i] = tokens.scale[j];
      shifted.tokens.rounding[i] = tokens.rounding[j];
    }
    out.push_back(std::move(shifted));
  }
  return out;
}

}  // namespace tandem::drift
