#include "drift_lab/diagnosis/cause_strength.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/statistics/distributions.h"

namespace tandem::drift {
namespace {

using offpolicy::Capture;
using offpolicy::Interval;

// The least-squares step of the residual r along the direction d, sum(d r) / sum(d^2), with its
// interval over completions.
Interval StepInterval(const Capture& capture, const std::function<double(size_t)>& direction,
                      const std::vector<float>& predicted,
                      const offpolicy::BootstrapOptions& options) {
  offpolicy::ClusterSums clusters{.num_sums = 2};
  for (int64_t s = 0; s < capture.num_completions(); ++s) {
    double along = 0, squares = 0;
    for (int64_t t = capture.begin_of(s); t < capture.begin_of(s + 1); ++t) {
      const auto place = static_cast<size_t>(t);
      const double d = direction(place),
                   r = Residual(capture.behaviour_logprobs[place], predicted[place]);
      if (!std::isfinite(d) || !std::isfinite(r)) continue;
      along += d * r;
      squares += d * d;
    }
    clusters.values.insert(clusters.values.end(), {along, squares});
  }
  const offpolicy::Statistic slope = [](std::span<const double> sums) { return sums[0] / sums[1]; };
  return offpolicy::BootstrapIntervals(clusters, {&slope, 1}, options).front();
}

// The interval of a value, from that of the step that led to it.
Interval Around(double value, const Interval& step, double scale) {
  const double low = value + scale * (step.low - step.value),
               high = value + scale * (step.high - step.value);
  return {.value = value, .low = std::min(low, high), .high = std::max(low, high)};
}

void FillTemperature(const Capture& capture, const Attempt& all,
                     const offpolicy::BootstrapOptions& bootstrap, DiagnosedCause& cause) {
  const double value = all.hypothesis.temperature;
  const Interval step = StepInterval(
      capture, [&](size_t t) { return double{all.scores.logprobs[t]} + all.scores.entropies[t]; },
      all.predicted, bootstrap);
  cause.kind = all.fit.exact() ? StrengthKind::kExact : StrengthKind::kInterval;
  cause.strength = Around(value, step, -value);  // the step is of log(1 / T)
  cause.label = absl::StrFormat("temperature %.5g times the claimed one", value);
  cause.evidence = "the gap is linear in log p + H within every context, with that slope";
}

// The nearest values to the found one that did not give the record back, all else equal. Unknown if
// no smaller value was tried.
Interval MinPBracket(const RecordHypothesis& found, std::span<const Tried> tried) {
  double low = 0, high = 1;
  for (const Tried& other : tried) {
    RecordHypothesis else_equal = other.hypothesis;
    else_equal.min_p = found.min_p;
    if (other.identical || !(else_equal == found)) continue;
    const double value = other.hypothesis.min_p;
    if (value < found.min_p) low = std::max(low, value);
    if (value > found.min_p) high = std::min(high, value);
  }
  if (low == 0) return {.value = found.min_p};
  return {.value = found.min_p, .low = low, .high = high};
}

// The bounds are the values of top-p and top-k that would have retained the same sets: no sampled
// token is cut, and no retained set has less mass than p.
void FillFilter(Part part, const Attempt& attempt, std::span<const Tried> tried,
                DiagnosedCause& cause) {
  const RecordHypothesis& h = attempt.hypothesis;
  double heaviest_above = 0, largest_rank = 0, lightest = 1;
  for (size_t t = 0; t < attempt.predicted.size(); ++t) {
    if (!std::isfinite(attempt.predicted[t])) continue;
    heaviest_above = std::max<double>(heaviest_above, attempt.scores.mass_above[t]);
    largest_rank = std::max<double>(largest_rank, attempt.scores.ranks[t]);
    lightest = std::min<double>(lightest, attempt.scores.kept_mass[t]);
  }
  cause.kind = StrengthKind::kExact;
  cause.evidence =
      "every record is above its replay by log(1 / retained probability mass) of that filter";
  if (part == Part::kTopP) {
    cause.strength = {.value = h.top_p, .low = heaviest_above, .high = lightest};
    cause.label = absl::StrFormat("top-p %.4g", h.top_p);
  } else if (part == Part::kTopK) {
    const auto k = static_cast<double>(h.top_k);
    cause.strength = {.value = k, .low = largest_rank + 1, .high = k};
    cause.label = absl::StrCat("top-k ", h.top_k);
  } else {
    cause.strength = MinPBracket(h, tried);
    cause.label = absl::StrFormat("min-p %.4g", h.min_p);
  }
}

void FillBits(int bits, const char* site, DiagnosedCause& cause) {
  cause.kind = StrengthKind::kExact;
  const auto value = static_cast<double>(bits);
  cause.strength = {.value = value, .low = value, .high = value};
  cause.label = absl::StrCat(site, " rounded to ", bits, " significant bits");
  cause.evidence = "the replay with that rounding gives the record back";
}

std::string SourceOf(const OtherWeights& weights) {
  if (weights.versions_before == OtherWeights::kInitial)
    return "the weights of the model directory";
  return weights.versions_before == 1 ? "the version before"
                                      : absl::StrCat(weights.versions_before, " versions before");
}

void FillWeights(const Capture& capture, const ReplayedCause& found,
                 const offpolicy::BootstrapOptions& bootstrap, DiagnosedCause& cause) {
  const Attempt& all = found.all;
  const OtherWeights& weights = *found.attempt.hypothesis.weights;
  const std::string what = weights.tensors.size() == 1 ? weights.tensors.front() : "all weights";
  cause.evidence = "the replay under those weights gives the record back";
  if (weights.amount == 1) {
    cause.label = absl::StrCat(what, " of ", SourceOf(weights));
    if (weights.versions_before == OtherWeights::kInitial) return;
    cause.kind = StrengthKind::kExact;
    const auto k = static_cast<double>(weights.versions_before);
    cause.strength = {.value = k, .low = k, .high = k};
    return;
  }
  // To first order, the effect of a small change of the amount is the whole effect divided by the
  // amount.
  const Interval step = StepInterval(
      capture,
      [&](size_t t) {
        return (double{found.attempt.predicted[t]} - found.without.predicted[t]) / weights.amount;
      },
      all.predicted, bootstrap);
  cause.kind = all.fit.exact() ? StrengthKind::kExact : StrengthKind::kInterval;
  cause.strength = Around(weights.amount, step, 1);
  cause.label =
      absl::StrFormat("%s %.4g of the way to %s", what, weights.amount, SourceOf(weights));
}

// A group's prompt is computed once, so a whole group is stale or not.
void FillStalePrefix(const Capture& capture, const Attempt& attempt, DiagnosedCause& cause) {
  std::set<int32_t> groups, stale;
  for (int64_t s = 0; s < capture.num_completions(); ++s) {
    groups.insert(capture.group[static_cast<size_t>(s)]);
    if (attempt.hypothesis.stale_rows[static_cast<size_t>(s)])
      stale.insert(capture.group[static_cast<size_t>(s)]);
  }
  const int64_t count = std::ssize(stale), of = std::ssize(groups);
  const offpolicy::ShareInterval interval = offpolicy::JeffreysInterval(count, of, 0.95);
  cause.kind = StrengthKind::kInterval;
  cause.strength = {.value = static_cast<double>(count) / static_cast<double>(of),
                    .low = interval.low,
                    .high = interval.high};
  cause.label = absl::StrCat("prompt KV of ", attempt.hypothesis.stale_prefix, " version",
                             attempt.hypothesis.stale_prefix == 1 ? "" : "s", " before in ", count,
                             " of ", of, " groups");
  cause.evidence =
      "only completions with a cached prefix differ, from their first token on, and the replay "
      "over the KV of that version gives them back";
}

}  // namespace

DiagnosedCause DescribeReplayed(const Capture& capture, const ReplayedCause& found,
                                std::span<const Tried> tried,
                                const offpolicy::BootstrapOptions& bootstrap) {
  DiagnosedCause cause{.part = found.part};
  const Attempt& attempt = found.attempt;
  const RecordHypothesis& h = attempt.hypothesis;
  switch (found.part) {
    case Part::kTemperature:
      FillTemperature(capture, found.all, bootstrap, cause);
      break;
    case Part::kTopP:
    case Part::kTopK:
    case Part::kMinP:
      FillFilter(found.part, attempt, tried, cause);
      break;
    case Part::kBodyBits:
      FillBits(h.precision.body_bits, "inputs of linear layers", cause);
      break;
    case Part::kHeadBits:
      FillBits(h.precision.head_bits, "the head's input and logits", cause);
      break;
    case Part::kKvBits:
      FillBits(h.precision.kv_bits, "keys and values", cause);
      break;
    case Part::kRotaryBits:
      FillBits(h.precision.rotary_bits, "rotary angles", cause);
      break;
    case Part::kKvQuantisation:
      FillBits(h.kv_quantisation.bits, "", cause);
      cause.label = absl::StrCat("KV cache of ", h.kv_quantisation.bits,
                                 "-bit integers from position ", h.kv_quantisation.from_position);
      break;
    case Part::kWeightFormat:
      cause.label = absl::StrCat("weights held as ", h.weight_formats);
      cause.evidence = "the replay with weights in those formats gives the record back";
      break;
    case Part::kFirstId:
      cause.label =
          absl::StrCat("prompts computed with id ", h.first_id, " in place of their first");
      cause.evidence = "the replay with that id gives the record back";
      break;
    case Part::kStalePrefix:
      FillStalePrefix(capture, attempt, cause);
      break;
    default:
      FillWeights(capture, found, bootstrap, cause);
      break;
  }
  return cause;
}

DiagnosedCause DescribeShift(const ShiftEstimate& shifts) {
  return {.part = Part::kShift,
          .label = absl::StrFormat("log-probs moved by %+d tokens in %d of %d completions",
                                   shifts.most_common, shifts.num_shifted, shifts.num_rows),
          .kind = StrengthKind::kInterval,
          .strength = {.value = shifts.fraction,
                       .low = shifts.interval.low,
                       .high = shifts.interval.high},
          .evidence = "moved back, they are the replay's"};
}

DiagnosedCause DescribeNoise(const NoiseFit& noise) {
  DiagnosedCause cause{.part = noise.heavy_tail ? Part::kHeavyTail : Part::kLogitNoise,
                       .kind = StrengthKind::kInterval,
                       .strength = noise.heavy_tail ? noise.tail_probability : noise.sigma};
  cause.label = absl::StrFormat("logits off by %.3g (standard deviation)", noise.sigma.value);
  if (noise.heavy_tail) {
    absl::StrAppendFormat(&cause.label, ", %.3g times that at %.2g %% of the tokens",
                          noise.tail_factor.value, 100 * noise.tail_probability.value);
  }
  cause.evidence = absl::StrFormat(
      "what is left has the scale sqrt(1 - 2p + sum p^2) token by token, is "
      "normal (distance %.3f, %.3f is believed) and depends on nothing else",
      noise.distance, noise.largest_distance);
  return cause;
}

}  // namespace tandem::drift
