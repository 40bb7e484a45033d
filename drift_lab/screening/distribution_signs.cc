#include "drift_lab/screening/distribution_signs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/statistics/distributions.h"
#include "drift_lab/screening/lattice_signs.h"
#include "drift_lab/screening/row_sums.h"

namespace tandem::drift {
namespace {

using offpolicy::ClusterSums;
using offpolicy::Interval;

constexpr int64_t kLeastDistributionTokens = 200;
constexpr double kLeastLoss = 0.004;  // of retained mass; a cast or a kernel leaves less

// ---- truncation

enum TruncationSums : size_t { kTokens, kLoss, kAbove, kBelow, kHeavy, kNumTruncation };

ClusterSums SumTruncation(const TokenPairs& pairs) {
  return SumRows(pairs, kNumTruncation, [&](int64_t row, std::span<double> sums) {
    for (size_t m = pairs.begin_of(row); m < pairs.end_of(row); ++m) {
      const double delta = pairs.delta(m);
      if (!std::isfinite(delta)) continue;
      sums[kTokens] += 1;
      sums[kLoss] += -std::expm1(std::min(delta, 20.0));
      sums[kAbove] += std::max(delta, 0.0);
      sums[kBelow] += std::max(-delta, 0.0);
      sums[kHeavy] += delta > std::log(2.0);
    }
  });
}

// True if the most certain fifth of the tokens loses less than the others do on average. A filter
// keeps more the more certain a context is. Values of no distribution, such as those of a loss with
// label smoothing, are below it everywhere.
bool KeepsCertainTokens(const TokenPairs& pairs) {
  std::vector<std::pair<float, double>> tokens;  // log-prob of the behaviour, delta
  double all = 0;
  for (size_t m = 0; m < pairs.place.size(); ++m) {
    if (!std::isfinite(pairs.delta(m))) continue;
    tokens.emplace_back(pairs.behaviour[m], pairs.delta(m));
    all += pairs.delta(m);
  }
  const size_t fifth = tokens.size() / 5;
  std::ranges::nth_element(tokens, tokens.begin() + static_cast<std::ptrdiff_t>(fifth),
                           std::greater(), &std::pair<float, double>::first);
  double certain = 0;
  for (size_t i = 0; i < fifth; ++i) certain += tokens[i].second;
  return certain / static_cast<double>(fifth) > all / static_cast<double>(tokens.size());
}

// ---- temperature

// The slope of the behaviour's differences within a context on those of the proximal side.
// kFar: of differences of more than kFarDifference, which a temperature stretches as much as others.
enum TopSums : size_t { kTopCount, kTopXx, kTopXy, kTopYy, kFarXx, kFarXy, kNumTop };
constexpr double kFarDifference = 1.5;

struct TopAt {
  std::span<const int32_t> ids;
  std::span<const float> logprobs;
};
TopAt TopOf(const TopTokens& top, int64_t n) {
  if (top.offsets.empty()) return {};
  const auto begin = static_cast<size_t>(top.offsets[static_cast<size_t>(n)]);
  const auto end = static_cast<size_t>(top.offsets[static_cast<size_t>(n) + 1]);
  return {std::span(top.ids).subspan(begin, end - begin),
          std::span(top.logprobs).subspan(begin, end - begin)};
}

void AddTopDifference(const TopAt& behaviour, const TopAt& proximal, std::span<double> sums) {
  bool has_first = false;
  double first_x = 0, first_y = 0;
  for (size_t i = 0; i < proximal.ids.size(); ++i) {
    const auto same = std::ranges::find(behaviour.ids, proximal.ids[i]);
    if (same == behaviour.ids.end()) continue;
    const double x = proximal.logprobs[i];
    const double y = behaviour.logprobs[static_cast<size_t>(same - behaviour.ids.begin())];
    if (!std::isfinite(x) || !std::isfinite(y) || y < -50) continue;
    if (has_first) {
      sums[kTopCount] += 1;
      sums[kTopXx] += (x - first_x) * (x - first_x);
      sums[kTopXy] += (x - first_x) * (y - first_y);
      sums[kTopYy] += (y - first_y) * (y - first_y);
      if (std::abs(x - first_x) > kFarDifference) {
        sums[kFarXx] += (x - first_x) * (x - first_x);
        sums[kFarXy] += (x - first_x) * (y - first_y);
      }
      return;  // one difference a token: the others are of the same context
    }
    has_first = true;
    first_x = x;
    first_y = y;
  }
}

ClusterSums SumTop(const Records& records, const TokenPairs& pairs) {
  return SumRows(pairs, kNumTop, [&](int64_t row, std::span<double> sums) {
    for (size_t m = pairs.begin_of(row); m < pairs.end_of(row); ++m) {
      AddTopDifference(TopOf(records.behaviour_top, pairs.place[m]),
                       TopOf(records.proximal_top, pairs.place[m]), sums);
    }
  });
}

double TopSlope(std::span<const double> sums) { return sums[kTopXy] / sums[kTopXx]; }
// The share of the squared difference between the sides that one slope explains.
double TopExplained(std::span<const double> sums) {
  const double apart = sums[kTopYy] - 2 * sums[kTopXy] + sums[kTopXx];
  const double left = sums[kTopYy] - sums[kTopXy] * sums[kTopXy] / sums[kTopXx];
  return apart > 0 ? 1 - left / apart : 0;
}

// True if near and far differences have one slope. A cap on logits, for one, bends it.
bool IsOneSlope(std::span<const double> sums) {
  const double near_xx = sums[kTopXx] - sums[kFarXx], near_xy = sums[kTopXy] - sums[kFarXy];
  if (!(near_xx > 0) || !(sums[kFarXx] > 0)) return false;
  return std::abs(near_xy / near_xx / (sums[kFarXy] / sums[kFarXx]) - 1) < 0.08;
}

// Least squares of delta on three regressors: sums of products, the last column is delta.
constexpr size_t kColumns = 4;
constexpr size_t kProducts = kColumns * kColumns;
using Regressors = std::array<double, kColumns>;

void AddProducts(const Regressors& x, std::span<double> sums) {
  for (size_t i = 0; i < kColumns; ++i) {
    for (size_t j = 0; j < kColumns; ++j) sums[i * kColumns + j] += x[i] * x[j];
  }
}

// The coefficient of the first regressor, and the share of the squares of delta that the fit
// explains. Gaussian elimination on the normal equations, which have three unknowns.
struct LineFit {
  double slope = std::nan("");
  double explained = 0;
};
LineFit FitLine(std::span<const double> products, size_t unknowns) {
  double a[3][4] = {};
  for (size_t i = 0; i < unknowns; ++i) {
    for (size_t j = 0; j < unknowns; ++j) a[i][j] = products[i * kColumns + j];
    a[i][3] = products[i * kColumns + 3];
    a[i][i] *= 1 + 1e-9;
  }
  for (size_t i = 0; i < unknowns; ++i) {
    if (!(std::abs(a[i][i]) > 0)) return {};
    for (size_t k = 0; k < unknowns; ++k) {
      if (k == i) continue;
      const double f = a[k][i] / a[i][i];
      for (size_t j = i; j < 4; ++j) a[k][j] -= f * a[i][j];
    }
  }
  LineFit fit{.slope = a[0][3] / a[0][0]};
  const double total = products[3 * kColumns + 3];
  double explained = 0;
  for (size_t i = 0; i < unknowns; ++i) explained += a[i][3] / a[i][i] * products[i * kColumns + 3];
  fit.explained = total > 0 ? explained / total : 0;
  return fit;
}

std::string TemperatureWords(const Records& records, const Interval& beta) {
  const SideClaims &behaviour = records.header.behaviour, &proximal = records.header.proximal;
  std::string text = absl::StrFormat(
      "the behaviour temperature is %.3g times the proximal one (between %.3g and %.3g)",
      1 / beta.value, 1 / beta.high, 1 / beta.low);
  for (const auto& [side, name] :
       {std::pair(&behaviour, "behaviour"), std::pair(&proximal, "proximal")}) {
    if (side->temperature.has_value())
      absl::StrAppend(&text, "; ", name, " claims temperature ", *side->temperature);
  }
  return text;
}

// Says whether the temperatures claimed account for beta.
bool IsTemperatureAsClaimed(const Records& records, const Interval& beta) {
  const SideClaims &behaviour = records.header.behaviour, &proximal = records.header.proximal;
  if (!behaviour.temperature.has_value() || !proximal.temperature.has_value()) return false;
  const double claimed = (proximal.logprobs == "raw" ? 1 : *proximal.temperature) /
                         (behaviour.logprobs == "raw" ? 1 : *behaviour.temperature);
  return beta.low * 0.98 <= claimed && claimed <= beta.high * 1.02;
}

// What temperature was found by either of the exact tests.
Sign JudgeTemperature(const Records& records, const Interval& beta, double explained, bool exact,
                      const char* how) {
  Sign sign{.id = "temperature",
            .statistic = "beta = proximal temperature / behaviour temperature",
            .value = beta};
  const bool is_away = beta.known() && (beta.low > 1.02 || beta.high < 0.98);
  const std::string evidence =
      absl::StrFormat("%s, which explains %.3g %% of the squared difference", how, 100 * explained);
  if (!beta.known()) {
    sign.statement = "Too few rows to give the ratio of the temperatures an interval.";
  } else if (!is_away && beta.low > 0.9 && beta.high < 1.1) {
    sign.verdict = SignVerdict::kRuledOut;
    sign.statement =
        absl::StrFormat("Both sides have one temperature: their ratio is %.4f [%.4f, %.4f] (%s).",
                        beta.value, beta.low, beta.high, how);
  } else if (is_away && explained >= (exact ? 0.95 : 0.85)) {
    sign.verdict = SignVerdict::kShown;
    sign.accuses = !IsTemperatureAsClaimed(records, beta);
    sign.false_alarm_rate = kTestLevel;
    sign.statement =
        absl::StrCat("The two sides have other temperatures: ", TemperatureWords(records, beta),
                     " (", evidence, ").");
    sign.command =
        "Divide the trainer's logits by the sampling temperature before the log-softmax, or have "
        "the engine "
        "return log-probs before temperature on both sides.";
  } else {
    sign.verdict = is_away && explained > 0.3 ? SignVerdict::kSuspected : SignVerdict::kCannotTell;
    sign.statement = absl::StrFormat(
        "A temperature ratio of %.3g [%.3g, %.3g] would explain %.3g %% of the squared difference "
        "(%s): not enough to name it.",
        beta.value, beta.low, beta.high, 100 * explained, how);
  }
  return sign;
}

Sign SuspectTemperature(const TokenPairs& pairs, uint64_t seed) {
  const ClusterSums clusters = SumRows(pairs, kProducts, [&](int64_t row, std::span<double> sums) {
    for (size_t m = pairs.begin_of(row); m < pairs.end_of(row); ++m) {
      const double delta = pairs.delta(m);
      if (std::isfinite(delta)) AddProducts({pairs.proximal[m], 1, 0, delta}, sums);
    }
  });
  const offpolicy::Statistic slope[] = {
      [](std::span<const double> sums) { return FitLine(sums, 2).slope; }};
  const Interval interval =
      offpolicy::BootstrapIntervals(clusters, slope, {.level = 1 - kTestLevel, .seed = seed})[0];
  const std::vector<double> total = clusters.Total();
  const double explained = FitLine(total, 2).explained;
  Sign sign{.id = "temperature",
            .verdict = SignVerdict::kCannotTell,
            .statement =
                "A temperature can be told with the entropy of one side or the most probable "
                "tokens of both, "
                "which the record does not have.",
            .statistic = "slope of delta on log proximal",
            .value = interval,
            .command =
                "Write proximal_entropy, or behaviour_top_ids and proximal_top_ids with their "
                "log-probs."};
  if (interval.known() && (interval.low > 0.03 || interval.high < -0.03) && explained > 0.25) {
    sign.verdict = SignVerdict::kSuspected;
    sign.statement = absl::StrFormat(
        "Delta falls or rises with the log-prob (slope %.3g [%.3g, %.3g], %.3g %% of its square): "
        "a temperature does "
        "that, and so do other weights. The entropy of one side would tell.",
        interval.value, interval.low, interval.high, 100 * explained);
  }
  return sign;
}

// True if what the file claims makes the draws sharper or flatter than the recorded distribution.
bool ClaimsExplainDraws(const SideClaims& side, bool sharper) {
  const bool is_raw = side.logprobs == "raw";
  const double temperature = is_raw ? side.temperature.value_or(1) : 1;
  return sharper ? !ClaimedFilters(side).empty() || temperature < 1 : temperature > 1;
}

// Without an entropy. Over draws from the recorded distribution, the mean of w is at most 1 whatever
// the proximal policy is, and so is that of min(w, 3), whose variance is bounded.
Sign DrawsByWeight(const Records& records, const TokenPairs& pairs, uint64_t seed) {
  constexpr double kMostWeight = 3, kLeastExcess = 0.01;
  enum : size_t { kNumTokens, kBounded, kHoles, kNumSums };
  const ClusterSums clusters = SumRows(pairs, kNumSums, [&](int64_t row, std::span<double> sums) {
    for (size_t m = pairs.begin_of(row); m < pairs.end_of(row); ++m) {
      const double delta = pairs.delta(m);
      if (std::isfinite(delta)) {
        sums[kNumTokens] += 1;
        sums[kBounded] += std::min(std::exp(std::min(delta, 2.0)), kMostWeight);
      } else {
        sums[kHoles] += std::isfinite(pairs.behaviour[m]);  // where w may be 0
      }
    }
  });
  Sign sign{.id = "draws",
            .side = SignSide::kBehaviour,
            .statement =
                "Whether the tokens were drawn from the recorded distribution can be told with "
                "behaviour_entropy, which the record does not have.",
            .statistic = "mean of min(w, 3)"};
  const std::vector<double> total = clusters.Total();
  if (total.empty() || total[kNumTokens] < kLeastDistributionTokens ||
      total[kHoles] > 0.001 * total[kNumTokens])
    return sign;
  const Interval mean = RatioInterval(clusters, kBounded, kNumTokens, 1 - kTestLevel, seed);
  sign.value = mean;
  if (!mean.known() || mean.low < 1 + kLeastExcess) return sign;
  const SideClaims& side = records.header.behaviour;
  const bool as_claimed = ClaimsExplainDraws(side, true) || ClaimsExplainDraws(side, false);
  sign.verdict = SignVerdict::kShown;
  sign.side = SignSide::kUnknown;
  sign.accuses = !as_claimed;
  sign.false_alarm_rate = kTestLevel;
  sign.statement = absl::StrFormat(
      "The tokens were not drawn from the distribution that behaviour_logprobs are of, or "
      "proximal_logprobs are of none: the mean of "
      "min(w, 3) is %.4f [%.4f, %.4f], and over draws from it at most 1, whatever the trainer "
      "does%s.",
      mean.value, mean.low, mean.high,
      as_claimed ? "; the settings that the file claims do this"
                 : ". Log-probs before the temperature (raw) do this, and so do settings or "
                   "weights that the record leaves out");
  if (!as_claimed)
    sign.command = "Record processed log-probs (vLLM: logprobs_mode processed_logprobs).";
  return sign;
}

}  // namespace

std::string ClaimedFilters(const SideClaims& side) {
  std::vector<std::string> claims;
  if (side.top_k.value_or(0) > 0) claims.push_back(absl::StrCat("top_k ", *side.top_k));
  if (side.top_p.value_or(1) < 1) claims.push_back(absl::StrCat("top_p ", *side.top_p));
  if (side.min_p.value_or(0) > 0) claims.push_back(absl::StrCat("min_p ", *side.min_p));
  if (side.min_tokens.value_or(0) > 0)
    claims.push_back(absl::StrCat("min_tokens ", *side.min_tokens));
  return absl::StrJoin(claims, ", ");
}

Sign TruncationSign(const Records& records, const TokenPairs& pairs, uint64_t seed) {
  Sign sign{.id = "truncation", .side = SignSide::kBehaviour, .statistic = "1 - mean w"};
  const ClusterSums clusters = SumTruncation(pairs);
  const std::vector<double> total = clusters.Total();
  const Interval loss = RatioInterval(clusters, kLoss, kTokens, 1 - kTestLevel, seed);
  if (total.empty() || total[kTokens] < kLeastDistributionTokens || !loss.known()) {
    sign.statement = "Too few tokens or rows to tell whether one side leaves tokens out.";
    return sign;
  }
  sign.value = RatioInterval(clusters, kLoss, kTokens, 0.95, seed);
  const double upward = total[kAbove] / std::max(total[kAbove] + total[kBelow], 1e-300);
  const double step =
      2 * (LatticeOf(pairs.behaviour).mean_error + LatticeOf(pairs.proximal).mean_error);
  const std::string filters = ClaimedFilters(records.header.behaviour);
  const std::string numbers = absl::StrFormat(
      "the mean weight is %.4f [%.4f, %.4f], and %.2g %% of the sum of |delta| is above 0",
      1 - sign.value.value, 1 - sign.value.high, 1 - sign.value.low, 100 * upward);
  // A filter leaves delta at most 0. What is above 0 is noise, and noise has as much below. Policies
  // that are far apart have a mean of w below 1 in most samples too, made up for by few large w.
  const bool only_below =
      upward < 0.2 && total[kHeavy] <= 0.001 * total[kTokens] && KeepsCertainTokens(pairs);
  if (loss.low > kLeastLoss && loss.value > step && only_below) {
    sign.verdict = SignVerdict::kShown;
    sign.accuses = filters.empty();
    sign.false_alarm_rate = kTestLevel;
    sign.statement = absl::StrCat(
        "The behaviour policy leaves out tokens that the proximal policy gives ",
        absl::StrFormat("%.2g", 100 * loss.value), " % of the probability: ", numbers,
        ". A filter (top-k, top-p, min-p, typical-p) or a ban does this, and the numbers do not "
        "say which",
        filters.empty() ? "; none is claimed." : absl::StrCat("; claimed: ", filters, "."));
    sign.command =
        "Sample without filters (top_p 1, top_k off, min_p 0), or apply the same filter when the "
        "trainer scores.";
  } else if (loss.high < 2 * kLeastLoss && loss.low > -0.05) {
    sign.verdict = SignVerdict::kRuledOut;
    sign.statement = absl::StrCat("No tokens are left out on one side only: ", numbers, ".");
  } else {
    sign.statement = absl::StrCat(
        "Whether one side leaves tokens out cannot be told beside what else differs: ", numbers,
        ".");
  }
  return sign;
}

Sign TemperatureSign(const Records& records, const TokenPairs& pairs, uint64_t seed) {
  const offpolicy::BootstrapOptions options{.level = 1 - kTestLevel, .seed = seed};
  if (!records.behaviour_top.ids.empty() && !records.proximal_top.ids.empty()) {
    const ClusterSums clusters = SumTop(records, pairs);
    const std::vector<double> total = clusters.Total();
    if (!total.empty() && total[kTopCount] >= kLeastDistributionTokens) {
      const offpolicy::Statistic slope[] = {TopSlope};
      return JudgeTemperature(records, offpolicy::BootstrapIntervals(clusters, slope, options)[0],
                              IsOneSlope(total) ? TopExplained(total) : 0, true,
                              "one slope of differences between the most probable tokens");
    }
  }
  const bool of_proximal = records.has(Column::kProximalEntropy);
  if (!of_proximal && !records.has(Column::kBehaviourEntropy))
    return SuspectTemperature(pairs, seed);
  const std::vector<float> entropy = AtDrawnTokens(
      records, pairs, of_proximal ? Column::kProximalEntropy : Column::kBehaviourEntropy);
  const ClusterSums clusters = SumRows(pairs, kProducts, [&](int64_t row, std::span<double> sums) {
    for (size_t m = pairs.begin_of(row); m < pairs.end_of(row); ++m) {
      const double delta = pairs.delta(m), h = entropy[m];
      if (!std::isfinite(delta) || !std::isfinite(h)) continue;
      AddProducts({of_proximal ? pairs.proximal[m] : pairs.behaviour[m], h, h * h, delta}, sums);
    }
  });
  // delta = (1 - beta) log proximal + ...; on the behaviour's log-prob the slope is 1 / beta - 1.
  const offpolicy::Statistic beta[] = {[=](std::span<const double> sums) {
    const double slope = FitLine(sums, 3).slope;
    return of_proximal ? 1 - slope : 1 / (1 + slope);
  }};
  return JudgeTemperature(records, offpolicy::BootstrapIntervals(clusters, beta, options)[0],
                          FitLine(clusters.Total(), 3).explained, false,
                          "a regression of delta on log-prob and entropy");
}

Sign DrawsSign(const Records& records, const TokenPairs& pairs, uint64_t seed) {
  if (!records.has(Column::kBehaviourEntropy) || !records.has(Column::kBehaviour)) {
    return DrawsByWeight(records, pairs, seed);
  }
  Sign sign{.id = "draws", .side = SignSide::kBehaviour, .statistic = "z = sum x / sqrt(sum x^2)"};
  const std::vector<float> entropy = AtDrawnTokens(records, pairs, Column::kBehaviourEntropy);
  double sum = 0, squares = 0, count = 0;
  for (size_t m = 0; m < entropy.size(); ++m) {
    const double x = -static_cast<double>(pairs.behaviour[m]) - entropy[m];
    if (!std::isfinite(x)) continue;
    sum += x;
    squares += x * x;
    count += 1;
  }
  if (count < kLeastDistributionTokens || !(squares > 0)) {
    sign.statement =
        "Too few tokens have an entropy to tell whether they were drawn from the recorded "
        "distribution.";
    return sign;
  }
  const double z = sum / std::sqrt(squares), mean = sum / count;
  sign.value.value = z;
  sign.p_value = 2 * offpolicy::NormalCdf(-std::abs(z));
  const SideClaims& side = records.header.behaviour;
  const std::string numbers = absl::StrFormat(
      "the drawn tokens are %.2g nats %s than that distribution says on average (z = %.1f)",
      std::abs(mean), mean > 0 ? "less likely" : "likelier", z);
  if (sign.p_value < kTestLevel && std::abs(mean) > 0.03) {
    const bool as_claimed = ClaimsExplainDraws(side, z < 0);
    sign.verdict = SignVerdict::kShown;
    sign.accuses = !as_claimed;
    sign.false_alarm_rate = kTestLevel;
    sign.statement = absl::StrCat(
        "The tokens were not drawn from the distribution that behaviour_logprobs and "
        "behaviour_entropy describe: ",
        numbers,
        as_claimed ? "; the settings that the file claims do this."
        : mean < 0
            ? "; settings that the record leaves out do this, such as a lower temperature "
              "or a filter, and so do log-probs of other weights."
            : "; settings that the record leaves out do this, such as a higher temperature, a "
              "penalty or forced tokens, and so do log-probs of other weights.");
    if (!as_claimed)
      sign.command = "Record processed log-probs (vLLM: logprobs_mode processed_logprobs).";
  } else {
    sign.verdict = SignVerdict::kRuledOut;
    sign.statement = absl::StrCat("The draws follow the recorded distribution: ", numbers, ".");
  }
  return sign;
}

Sign RawSign(const Records& records, const TokenPairs& pairs) {
  Sign sign{.id = "raw_logprobs", .side = SignSide::kBehaviour};
  const SideClaims& side = records.header.behaviour;
  const bool changes = side.temperature.value_or(1) != 1 || !ClaimedFilters(side).empty();
  if (side.logprobs == "raw" && changes) {
    sign.verdict = SignVerdict::kShown;
    sign.statement =
        "By its header, behaviour_logprobs are those before temperature and filters, so that "
        "e^delta is not the "
        "ratio of the policies that drew and train.";
    sign.command = "Record processed log-probs (vLLM: logprobs_mode processed_logprobs).";
    return sign;
  }
  if (!records.has(Column::kBehaviourRaw)) {
    sign.statement =
        changes
            ? "Whether behaviour_logprobs are those before temperature and filters needs a replay, "
              "behaviour_raw_logprobs or behaviour_entropy."
            : "Neither a temperature nor a filter is claimed, so raw and processed log-probs would "
              "be equal.";
    sign.verdict = changes ? SignVerdict::kNeedsWeights : SignVerdict::kCannotTell;
    return sign;
  }
  const std::vector<float> raw = AtDrawnTokens(records, pairs, Column::kBehaviourRaw);
  int64_t count = 0, equal = 0;
  for (size_t m = 0; m < raw.size(); ++m) {
    if (!std::isfinite(raw[m]) || !std::isfinite(pairs.behaviour[m]) || raw[m] > -0.05F) continue;
    ++count;
    equal += std::abs(raw[m] - pairs.behaviour[m]) <= 1e-6F * std::abs(raw[m]);
  }
  if (!changes || count < 20) {
    sign.statement =
        "Raw and processed log-probs cannot be told apart where no temperature and no filter is "
        "claimed.";
    return sign;
  }
  const bool same = equal * 1000 >= count * 999;
  sign.verdict = same ? SignVerdict::kShown : SignVerdict::kRuledOut;
  sign.accuses = same;
  sign.false_alarm_rate = same ? kTestLevel : sign.false_alarm_rate;
  sign.statement = absl::StrFormat(
      "behaviour_logprobs equal behaviour_raw_logprobs at %d of %d uncertain tokens, %s", equal,
      count,
      same ? "though a temperature or filter is claimed: both are raw." : "so they are processed.");
  return sign;
}

}  // namespace tandem::drift
