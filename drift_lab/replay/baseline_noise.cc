#include "drift_lab/replay/baseline_noise.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"

namespace tandem::drift {
namespace {

using offpolicy::TokenRecord;

struct CompletionSums {
  double delta = 0, k3 = 0, smallest_delta = 0, largest_k3 = 0, tokens = 0;
};

// Sums over the tokens of all baselines.
struct Moments {
  double count = 0, sum = 0, squares = 0;
};

void AddBaseline(const TokenRecord& record, BaselineNoise& noise, Moments& moments,
                 std::vector<CompletionSums>& all) {
  std::map<int32_t, CompletionSums> completions;
  for (size_t t = 0; t < record.mask.size(); ++t) {
    if (!record.mask[t] || !record.IsFinite(t)) continue;
    const double delta = record.Delta(t), w = std::exp(delta), k3 = w - 1 - delta;
    noise.token_w.push_back(w);
    ++moments.count;
    moments.sum += delta;
    moments.squares += delta * delta;
    CompletionSums& sums = completions[record.sequence[t]];
    sums.smallest_delta = sums.tokens == 0 ? delta : std::min(sums.smallest_delta, delta);
    sums.largest_k3 = std::max(sums.largest_k3, k3);
    sums.delta += delta;
    sums.k3 += k3;
    ++sums.tokens;
  }
  for (const auto& [sequence, sums] : completions) all.push_back(sums);
}

// The place of the threshold, counted from the end of the sorted values; 0 if there are too few.
size_t PlacesBeyond(size_t count, double rate) {
  return static_cast<size_t>(static_cast<double>(count + 1) * rate + 1e-9);
}

absl::Status CheckCount(const std::vector<double>& sorted, double rate, const char* of) {
  if (PlacesBeyond(sorted.size(), rate) > 0) return absl::OkStatus();
  return FailedPrecondition("the baseline has ", sorted.size(), " ", of, ", and a rate of ", rate,
                            " on one side takes ", std::ceil(1 / rate - 1e-9) - 1);
}

double Upper(const std::vector<double>& sorted, double rate) {
  return sorted[sorted.size() - PlacesBeyond(sorted.size(), rate)];
}

double Lower(const std::vector<double>& sorted, double rate) {
  return sorted[PlacesBeyond(sorted.size(), rate) - 1];
}

std::string Text(double value) { return absl::StrFormat("%.17g", value); }

absl::StatusOr<std::string> Ceiling(const std::vector<double>& w, double rate, const char* of) {
  TANDEM_RETURN_IF_ERROR(CheckCount(w, rate, of));
  return Text(std::max(1.0, Upper(w, rate)));
}

absl::StatusOr<std::string> Bounds(const std::vector<double>& w, double rate, const char* of) {
  TANDEM_RETURN_IF_ERROR(CheckCount(w, rate / 2, of));
  return absl::StrCat(Text(std::min(1.0, Lower(w, rate / 2))), ":",
                      Text(std::max(1.0, Upper(w, rate / 2))));
}

absl::StatusOr<std::string> Floor(const std::vector<double>& w, double rate, const char* of) {
  TANDEM_RETURN_IF_ERROR(CheckCount(w, rate, of));
  return Text(std::min(1.0, Lower(w, rate)));
}

// A threshold of 0 would switch the rule off, so it is an error.
absl::StatusOr<std::string> K3(const std::vector<double>& k3, double rate) {
  TANDEM_RETURN_IF_ERROR(CheckCount(k3, rate, "completions"));
  const double value = Upper(k3, rate);
  if (value > 0) return Text(value);
  return absl::FailedPreconditionError("k3 of the baseline is below what fp64 resolves");
}

// The rules that bound one statistic.
struct BoundRule {
  ThresholdRule rule;
  std::vector<double> BaselineNoise::*values;
  const char* of;
  absl::StatusOr<std::string> (*threshold)(const std::vector<double>&, double, const char*);
};
constexpr BoundRule kBoundRules[] = {
    {ThresholdRule::kTokenCeiling, &BaselineNoise::token_w, "tokens", Ceiling},
    {ThresholdRule::kTokenBounds, &BaselineNoise::token_w, "tokens", Bounds},
    {ThresholdRule::kProductCeiling, &BaselineNoise::product, "completions", Ceiling},
    {ThresholdRule::kProductBounds, &BaselineNoise::product, "completions", Bounds},
    {ThresholdRule::kGeometricCeiling, &BaselineNoise::geometric, "completions", Ceiling},
    {ThresholdRule::kGeometricBounds, &BaselineNoise::geometric, "completions", Bounds},
    {ThresholdRule::kGeometricFloor, &BaselineNoise::geometric, "completions", Floor},
    {ThresholdRule::kSmallest, &BaselineNoise::smallest_w, "completions", Floor},
};

}  // namespace

BaselineNoise MeasureBaseline(std::span<const TokenRecord> baselines) {
  BaselineNoise noise;
  Moments moments;
  std::vector<CompletionSums> completions;
  for (const TokenRecord& record : baselines) AddBaseline(record, noise, moments, completions);
  if (moments.count > 1) {
    const double mean = moments.sum / moments.count;
    noise.standard_deviation = std::sqrt(
        std::max(0.0, (moments.squares - moments.count * mean * mean) / (moments.count - 1)));
  }
  const double s = noise.standard_deviation;
  for (const CompletionSums& sums : completions) {
    const double mean = sums.delta / sums.tokens;
    noise.product.push_back(std::exp(sums.delta));
    noise.geometric.push_back(std::exp(mean));
    noise.smallest_w.push_back(std::exp(sums.smallest_delta));
    noise.largest_k3.push_back(sums.largest_k3);
    noise.mean_k3.push_back(sums.k3 / sums.tokens);
    if (s > 0)
      noise.length_aware.push_back(std::abs(mean + s * s / 2) * std::sqrt(sums.tokens) / s);
  }
  for (std::vector<double>* values :
       {&noise.token_w, &noise.product, &noise.geometric, &noise.smallest_w, &noise.largest_k3,
        &noise.mean_k3, &noise.length_aware}) {
    std::ranges::sort(*values);
  }
  return noise;
}

absl::StatusOr<std::string> BaselineThreshold(const BaselineNoise& noise, ThresholdRule rule,
                                              double rate) {
  if (!noise.token_w.empty() && noise.token_w.front() == 1 && noise.token_w.back() == 1) {
    return absl::FailedPreconditionError(
        "the baseline's drift is exactly 0: it has no noise to choose a threshold by");
  }
  for (const BoundRule& bound : kBoundRules) {
    if (bound.rule == rule) return bound.threshold(noise.*bound.values, rate, bound.of);
  }
  switch (rule) {
    case ThresholdRule::kK3Mean:
      return K3(noise.mean_k3, rate);
    case ThresholdRule::kK3Both: {
      TANDEM_ASSIGN_OR_RETURN(const std::string largest, K3(noise.largest_k3, rate / 2));
      TANDEM_ASSIGN_OR_RETURN(const std::string mean, K3(noise.mean_k3, rate / 2));
      return absl::StrCat(largest, ":", mean);
    }
    case ThresholdRule::kLengthAware:
      TANDEM_RETURN_IF_ERROR(CheckCount(noise.length_aware, rate, "completions"));
      return absl::StrCat(Text(Upper(noise.length_aware, rate)), ":",
                          Text(noise.standard_deviation));
    case ThresholdRule::kClipRange:
      TANDEM_RETURN_IF_ERROR(CheckCount(noise.token_w, rate / 2, "tokens"));
      return absl::StrCat(Text(std::max(0.0, 1 - Lower(noise.token_w, rate / 2))), ":",
                          Text(std::max(0.0, Upper(noise.token_w, rate / 2) - 1)));
    default:
      break;
  }
  return absl::FailedPreconditionError("no baseline (lr = 0) run can choose this threshold");
}

}  // namespace tandem::drift
