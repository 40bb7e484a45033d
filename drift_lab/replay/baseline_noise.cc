#include "drift_lab/replay/baseline_noise.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"

namespace tandem::drift {
namespace {

using offpolicy::TokenRecord;

struct CompletionSums {
  double delta = 0, k3 = 0, smallest_delta = 0, largest_k3 = 0, tokens = 0;
};

// Sums over tokens of one or more nulls.
struct Moments {
  double count = 0, sum = 0, squares = 0;
};

void AddNull(const TokenRecord& record, NullFloor& floor, Moments& moments,
             std::vector<CompletionSums>& all) {
  std::map<int32_t, CompletionSums> completions;
  for (size_t t = 0; t < record.mask.size(); ++t) {
    if (!record.mask[t] || !record.IsFinite(t)) continue;
    const double delta = record.Delta(t), w = std::exp(delta), k3 = w - 1 - delta;
    floor.token_w.push_back(w);
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

// The share of one side: place from the end that it leaves, 0 when there are too few.
size_t PlacesBeyond(size_t count, double rate) {
  return static_cast<size_t>(static_cast<double>(count + 1) * rate + 1e-9);
}

absl::Status CheckCount(const std::vector<double>& sorted, double rate, const char* of) {
  if (PlacesBeyond(sorted.size(), rate) > 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the null has ", sorted.size(), " ", of,
                                                    ", and a rate of ", rate, " on one side takes ",
                                                    std::ceil(1 / rate - 1e-9) - 1));
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

// 0 would switch the rule off.
absl::StatusOr<std::string> K3(const std::vector<double>& k3, double rate) {
  TANDEM_RETURN_IF_ERROR(CheckCount(k3, rate, "completions"));
  const double value = Upper(k3, rate);
  if (value > 0) return Text(value);
  return absl::FailedPreconditionError("k3 of the null is below what fp64 resolves");
}

}  // namespace

NullFloor MeasureNull(std::span<const TokenRecord> nulls) {
  NullFloor floor;
  Moments moments;
  std::vector<CompletionSums> completions;
  for (const TokenRecord& record : nulls) AddNull(record, floor, moments, completions);
  if (moments.count > 1) {
    const double mean = moments.sum / moments.count;
    floor.noise = std::sqrt(
        std::max(0.0, (moments.squares - moments.count * mean * mean) / (moments.count - 1)));
  }
  const double s = floor.noise;
  for (const CompletionSums& sums : completions) {
    const double mean = sums.delta / sums.tokens;
    floor.product.push_back(std::exp(sums.delta));
    floor.geometric.push_back(std::exp(mean));
    floor.smallest_w.push_back(std::exp(sums.smallest_delta));
    floor.largest_k3.push_back(sums.largest_k3);
    floor.mean_k3.push_back(sums.k3 / sums.tokens);
    if (s > 0)
      floor.length_aware.push_back(std::abs(mean + s * s / 2) * std::sqrt(sums.tokens) / s);
  }
  for (std::vector<double>* values :
       {&floor.token_w, &floor.product, &floor.geometric, &floor.smallest_w, &floor.largest_k3,
        &floor.mean_k3, &floor.length_aware}) {
    std::ranges::sort(*values);
  }
  return floor;
}

absl::StatusOr<std::string> NullThreshold(const NullFloor& floor, NullRule rule, double rate) {
  constexpr const char *kTokens = "tokens", *kCompletions = "completions";
  if (!floor.token_w.empty() && floor.token_w.front() == 1 && floor.token_w.back() == 1) {
    return absl::FailedPreconditionError(
        "the null's gap is exactly 0: it has no noise to choose a threshold by");
  }
  switch (rule) {
    case NullRule::kTokenCeiling:
      return Ceiling(floor.token_w, rate, kTokens);
    case NullRule::kTokenBounds:
      return Bounds(floor.token_w, rate, kTokens);
    case NullRule::kProductCeiling:
      return Ceiling(floor.product, rate, kCompletions);
    case NullRule::kProductBounds:
      return Bounds(floor.product, rate, kCompletions);
    case NullRule::kGeometricCeiling:
      return Ceiling(floor.geometric, rate, kCompletions);
    case NullRule::kGeometricBounds:
      return Bounds(floor.geometric, rate, kCompletions);
    case NullRule::kGeometricFloor:
      return Floor(floor.geometric, rate, kCompletions);
    case NullRule::kSmallest:
      return Floor(floor.smallest_w, rate, kCompletions);
    case NullRule::kK3Mean:
      return K3(floor.mean_k3, rate);
    case NullRule::kK3Both: {
      TANDEM_ASSIGN_OR_RETURN(const std::string largest, K3(floor.largest_k3, rate / 2));
      TANDEM_ASSIGN_OR_RETURN(const std::string mean, K3(floor.mean_k3, rate / 2));
      return absl::StrCat(largest, ":", mean);
    }
    case NullRule::kLengthAware:
      TANDEM_RETURN_IF_ERROR(CheckCount(floor.length_aware, rate, kCompletions));
      return absl::StrCat(Text(Upper(floor.length_aware, rate)), ":", Text(floor.noise));
    case NullRule::kClipRange:
      TANDEM_RETURN_IF_ERROR(CheckCount(floor.token_w, rate / 2, kTokens));
      return absl::StrCat(Text(std::max(0.0, 1 - Lower(floor.token_w, rate / 2))), ":",
                          Text(std::max(0.0, Upper(floor.token_w, rate / 2) - 1)));
    case NullRule::kNone:
      break;
  }
  return absl::FailedPreconditionError("no null run can choose this threshold");
}

}  // namespace tandem::drift
